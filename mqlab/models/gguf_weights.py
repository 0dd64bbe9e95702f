"""GGUF tensors to model.safetensors under transformers' names."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, ReaderTensor, dequantize
from tqdm import tqdm

from mqlab.bars import progress_bar
from mqlab.errors import ModelError
from mqlab.models.gguf_families import Family, Restore, family_of
from mqlab.models.gguf_metadata import Metadata
from mqlab.models.gguf_rope import FREQUENCIES
from mqlab.models.safetensors_stream import write_float32

_BLOCK = re.compile(r"blk\.(\d+)\.(.+)")
_WEIGHTS_AT_ONCE = 1 << 22


def write_weights(meta: Metadata, config: Mapping[str, Any], path: Path, *, progress: bool) -> None:
    """Dequantise all tensors to float32 and write them to ``path``; memory holds one of them at a time.

    Raises:
        ModelError: a tensor is missing, unknown, of a wrong shape or of a type that cannot be dequantised; nothing is written then.
    """
    family = family_of(meta)
    named = {name: hf_name(meta, family, config, name) for name in meta.tensors if name != FREQUENCIES}
    _require_complete(meta, set(named.values()), family, config)
    _require_readable(meta)
    _require_fitting(meta, config)
    shapes = {theirs: tuple(int(n) for n in reversed(meta.tensors[ours].shape)) for ours, theirs in named.items()}
    total = sum(meta.tensors[name].n_elements for name in named)
    with progress_bar("converting", shown=progress, total=total, unit="w", unit_scale=True) as bar:
        write_float32(path, shapes, _converted(meta, list(named), family, config, bar))


def hf_name(meta: Metadata, family: Family, config: Mapping[str, Any], name: str) -> str:
    """transformers' name of a GGUF tensor.

    Raises:
        ModelError: a tensor that this model does not have.
    """
    outer = {**family.outer, "output.weight": family.head}
    if name in outer:
        return outer[name]
    block = _BLOCK.fullmatch(name)
    inner = _inner(family, config)
    if block is None or block[2] not in inner or int(block[1]) >= config["num_hidden_layers"]:
        raise meta.refuse(f"holds a tensor {name!r} that a {family.hf_class.removesuffix('ForCausalLM')} of this shape does not have")
    return f"{family.layers}.{block[1]}.{inner[block[2]]}"


def _inner(family: Family, config: Mapping[str, Any]) -> dict[str, str]:
    """The names of a layer's tensors: those that every model of the family has, and those that are switched on."""
    switched = [names for switch, names in family.switches.items() if config[switch]]
    return {ours: theirs for names in (family.inner, *switched) for ours, theirs in names.items()}


def _require_complete(meta: Metadata, found: set[str], family: Family, config: Mapping[str, Any]) -> None:
    layers, inner = range(config["num_hidden_layers"]), _inner(family, config).values()
    wanted = {*family.outer.values()} | {f"{family.layers}.{layer}.{name}" for layer in layers for name in inner}
    if missing := sorted(wanted - found):
        raise ModelError(f"{meta.source} lacks {len(missing)} tensors, {missing[0]!r} first; check that the download is complete")


def _require_readable(meta: Metadata) -> None:
    for name, tensor in meta.tensors.items():
        if not _is_readable(kind := tensor.tensor_type):
            known = ", ".join(kind.name for kind in GGMLQuantizationType if _is_readable(kind))
            raise ModelError(f"{meta.source} stores {name!r} as {kind.name}, which cannot be dequantised; use a file of {known}")


def _is_readable(kind: GGMLQuantizationType) -> bool:
    """Whether gguf can dequantise a type; it says so only when asked to do it."""
    try:
        dequantize(np.zeros((1, GGML_QUANT_SIZES[kind][1]), np.uint8), kind)
    except NotImplementedError:
        return False
    return True


def _require_fitting(meta: Metadata, config: Mapping[str, Any]) -> None:
    """Rows of projections go by head: with another number of heads they would silently be put in a wrong order."""
    heads = config["num_attention_heads"]
    size = config.get("head_dim", config["hidden_size"] // heads)
    kv = config.get("num_key_value_heads", heads) * size
    rows = {"attn_q": heads * size, "attn_k": kv, "attn_v": kv, "attn_qkv": 3 * heads * size}
    for name, tensor in meta.tensors.items():
        found = int(tensor.shape[-1])
        if found != (wanted := rows.get(name.split(".")[-2], found)):
            raise ModelError(f"{meta.source} holds {name!r} with {found} rows, but its head counts call for {wanted}; download it again")


def _converted(meta: Metadata, names: list[str], family: Family, config: Mapping[str, Any], bar: tqdm) -> Iterator[np.ndarray]:
    for name in names:
        yield _restored(meta, name, family.restore.get(name.split(".")[-2]), config, bar)


def _restored(meta: Metadata, name: str, restore: Restore | None, config: Mapping[str, Any], bar: tqdm) -> np.ndarray:
    values = _dequantized(meta.tensors[name], bar)
    return restore(values, config) if restore else values


def _dequantized(tensor: ReaderTensor, bar: tqdm) -> np.ndarray:
    """Some rows at a time: what dequantising needs beside its result is several times as large."""
    shape = tuple(int(n) for n in reversed(tensor.shape))
    values = np.empty(shape, np.float32)
    table = values.reshape(-1, shape[-1])
    data = tensor.data.reshape(len(table), -1)
    step = max(1, _WEIGHTS_AT_ONCE // shape[-1])
    for start in range(0, len(table), step):
        part = slice(start, start + step)
        table[part] = dequantize(data[part], tensor.tensor_type)
        bar.update(table[part].size)
    return values
