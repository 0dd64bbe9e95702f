"""GGUF tensors to model.safetensors under transformers' names.

llama.cpp's converter reorders the rows of the query and key projections, because its rotary embedding turns neighbouring
pairs where transformers turns halves; here the rows go back (convert_hf_to_gguf.py, LlamaModel.permute).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from gguf import ReaderTensor, dequantize
from tqdm import tqdm

from mqlab.bars import progress_bar
from mqlab.errors import ModelError
from mqlab.models.safetensors_stream import write_float32

_OUTER = {"token_embd.weight": "model.embed_tokens.weight", "output_norm.weight": "model.norm.weight", "output.weight": "lm_head.weight"}
_INNER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_BLOCK = re.compile(r"blk\.(\d+)\.(\w+)\.weight")
_ROPE_FACTORS = "rope_freqs.weight"


def write_weights(source: Path, tensors: Sequence[ReaderTensor], config: dict[str, Any], path: Path, *, progress: bool) -> None:
    """Dequantise all tensors to float32 and write them to ``path``.

    Raises:
        ModelError: a tensor is missing, unknown or of a type that cannot be dequantised.
    """
    found = {hf_name(source, t.name): t for t in tensors if not _is_neutral_helper(t)}
    _require_complete(source, set(found), config)
    shapes = {name: tuple(int(n) for n in reversed(t.shape)) for name, t in found.items()}
    with progress_bar("converting", shown=progress, total=sum(t.n_elements for t in found.values()), unit="w", unit_scale=True) as bar:
        write_float32(path, shapes, _converted(source, found, config, bar))


def hf_name(source: Path, name: str) -> str:
    """transformers' name of a GGUF tensor.

    Raises:
        ModelError: a tensor that a plain Llama does not have.
    """
    if name in _OUTER:
        return _OUTER[name]
    block = _BLOCK.fullmatch(name)
    if block is None or block[2] not in _INNER:
        raise ModelError(f"{source} holds a tensor {name!r} that a plain Llama does not have; pass a Hugging Face folder")
    return f"model.layers.{block[1]}.{_INNER[block[2]]}.weight"


def unpermute(rows: np.ndarray, heads: int) -> np.ndarray:
    """Rows of a projection [heads * head_dim, in] from llama.cpp's rotary order to transformers'."""
    pairs = rows.reshape(heads, rows.shape[0] // heads // 2, 2, rows.shape[1])
    return pairs.swapaxes(1, 2).reshape(rows.shape)


def _converted(source: Path, found: dict[str, ReaderTensor], config: dict[str, Any], bar: tqdm) -> Iterator[np.ndarray]:
    heads = {"q_proj": config["num_attention_heads"], "k_proj": config["num_key_value_heads"]}
    for name, tensor in found.items():
        values = _dequantized(source, tensor)
        projection = name.split(".")[-2]
        yield unpermute(values, heads[projection]) if projection in heads else values
        bar.update(tensor.n_elements)


def _dequantized(source: Path, tensor: ReaderTensor) -> np.ndarray:
    try:
        return dequantize(tensor.data, tensor.tensor_type).astype(np.float32, copy=False)
    except NotImplementedError as error:
        kind = tensor.tensor_type.name
        raise ModelError(
            f"{source} stores {tensor.name!r} as {kind}, which cannot be dequantised; use a Q4_1, Q8_0, F16 or F32 file"
        ) from error


def _is_neutral_helper(tensor: ReaderTensor) -> bool:
    """Rotary factors that are all one change nothing; others would, and are refused by name."""
    return tensor.name == _ROPE_FACTORS and bool(np.all(tensor.data == 1))


def _require_complete(source: Path, found: set[str], config: dict[str, Any]) -> None:
    layers = range(config["num_hidden_layers"])
    wanted = {"model.embed_tokens.weight", "model.norm.weight"}
    wanted |= {f"model.layers.{layer}.{inner}.weight" for layer in layers for inner in _INNER.values()}
    if missing := sorted(wanted - found):
        raise ModelError(f"{source} lacks {len(missing)} tensors, {missing[0]!r} first; check that the download is complete")
