"""Weights under transformers' names as a GGUF file, the way llama.cpp's converter writes them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from gguf import MODEL_ARCH_NAMES, GGMLQuantizationType, GGUFValueType, GGUFWriter, get_tensor_name_map, quantize
from gguf.gguf_writer import GGUFValue

Weights = Mapping[str, np.ndarray]
Raw = Mapping[str, tuple[np.ndarray, GGMLQuantizationType]]
"""Tensors by their GGUF names, as bytes of a type."""


@dataclass(frozen=True, kw_only=True)
class Vocabulary:
    """The tokenizer part of a file. ``options`` are names of GGUFWriter's methods without ``add_`` and their arguments."""

    tokens: Sequence[str]
    kinds: Sequence[int]
    model: str = "gpt2"
    pre: str = "gpt-2"
    merges: Sequence[str] | None = None
    scores: Sequence[float] | None = None
    options: Mapping[str, Any] = field(default_factory=dict)


def plain_vocabulary(size: int) -> Vocabulary:
    """Tokens that only count; the one merge is there because GGUFWriter leaves out empty lists."""
    return Vocabulary(tokens=["a", "b", "ab", *[f"t{i}" for i in range(3, size)]], kinds=[1] * size, merges=["a b"])


def write_hf_gguf(
    path: Path,
    architecture: str,
    config: Mapping[str, Any],
    weights: Weights,
    *,
    kind: GGMLQuantizationType = GGMLQuantizationType.F32,
    vocabulary: Vocabulary | None = None,
    raw: Raw | None = None,
    metadata: Mapping[str, Any] | None = None,
) -> Path:
    """Write ``weights`` (norms and biases as float32, the rest as ``kind``) with the settings of ``config``.

    ``raw`` holds tensors beside or instead of them, ``metadata`` keys beside or instead of those that the config gives.
    """
    writer = GGUFWriter(path, architecture)
    _write_settings(writer, config, architecture)
    _write_vocabulary(writer, vocabulary or plain_vocabulary(config["vocab_size"]))
    for key, value in (metadata or {}).items():
        sub_type = GGUFValueType.UINT32 if isinstance(value, list) else None
        writer.kv_data[0][key] = GGUFValue(value, _VALUE_TYPES[type(value)], sub_type)
    tensors = {gguf_name(architecture, config, name): (name, values) for name, values in weights.items()}
    for name, (hf_name, values) in tensors.items():
        if name not in (raw or {}):
            stored = _STORED.get(architecture, _as_they_are)(hf_name, values, config)
            kept = GGMLQuantizationType.F32 if values.ndim == 1 else kind
            writer.add_tensor(name, quantize(np.ascontiguousarray(stored), kept), raw_dtype=kept)
    for name, (data, data_kind) in (raw or {}).items():
        writer.add_tensor(name, data, raw_dtype=data_kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def gguf_name(architecture: str, config: Mapping[str, Any], name: str) -> str:
    """llama.cpp's name of a transformers tensor, by the table that its converter uses."""
    arch = next(arch for arch, text in MODEL_ARCH_NAMES.items() if text == architecture)
    found = get_tensor_name_map(arch, config["num_hidden_layers"]).get_name(name, try_suffixes=(".weight", ".bias"))
    assert found is not None, name
    return found


_VALUE_TYPES = {
    list: GGUFValueType.ARRAY,
    str: GGUFValueType.STRING,
    int: GGUFValueType.UINT32,
    float: GGUFValueType.FLOAT32,
    bool: GGUFValueType.BOOL,
}

_SETTINGS = {
    "max_position_embeddings": "context_length",
    "hidden_size": "embedding_length",
    "intermediate_size": "feed_forward_length",
    "num_hidden_layers": "block_count",
    "num_attention_heads": "head_count",
    "num_key_value_heads": "head_count_kv",
    "rms_norm_eps": "layer_norm_rms_eps",
    "layer_norm_eps": "layer_norm_eps",
    "use_parallel_residual": "parallel_residual",
    "sliding_window": "sliding_window",
    "attn_logit_softcapping": "attn_logit_softcapping",
    "final_logit_softcapping": "final_logit_softcapping",
}


def _write_settings(writer: GGUFWriter, config: Mapping[str, Any], architecture: str) -> None:
    for field_name, method in _SETTINGS.items():
        if config.get(field_name) is not None:
            getattr(writer, f"add_{method}")(config[field_name])
    head = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    if architecture != "gptneox":
        writer.add_key_length(head)
        writer.add_value_length(head)
    rope = config.get("rope_parameters") or {}
    if not architecture.startswith("gemma"):
        writer.add_rope_freq_base(rope.get("rope_theta", 10000.0))
        writer.add_rope_dimension_count(int(head * rope.get("partial_rotary_factor", 1.0)))


def _write_vocabulary(writer: GGUFWriter, vocabulary: Vocabulary) -> None:
    writer.add_tokenizer_model(vocabulary.model)
    writer.add_tokenizer_pre(vocabulary.pre)
    writer.add_token_list(list(vocabulary.tokens))
    writer.add_token_types(list(vocabulary.kinds))
    if vocabulary.merges is not None:
        writer.add_token_merges(list(vocabulary.merges))
    if vocabulary.scores is not None:
        writer.add_token_scores(list(vocabulary.scores))
    for method, value in vocabulary.options.items():
        getattr(writer, f"add_{method}")(value)


def _as_they_are(name: str, values: np.ndarray, config: Mapping[str, Any]) -> np.ndarray:
    return values


def _llama(name: str, values: np.ndarray, config: Mapping[str, Any]) -> np.ndarray:
    """Rows of q and k: row i of a head's first half next to row i of its second half."""
    heads = config["num_attention_heads"] if "q_proj" in name else config["num_key_value_heads"] if "k_proj" in name else 0
    if not heads:
        return values
    head = len(values) // heads
    return values[[at * head + half * (head // 2) + i for at in range(heads) for i in range(head // 2) for half in (0, 1)]]


def _gemma(name: str, values: np.ndarray, config: Mapping[str, Any]) -> np.ndarray:
    return values + np.float32(1) if name.endswith("norm.weight") else values


def _gptneox(name: str, values: np.ndarray, config: Mapping[str, Any]) -> np.ndarray:
    """Query, key and value of each head to all queries, all keys, all values."""
    if "query_key_value" not in name:
        return values
    heads = config["num_attention_heads"]
    head = len(values) // heads // 3
    return values[[(at * 3 + part) * head + i for part in range(3) for at in range(heads) for i in range(head)]]


_STORED: Mapping[str, Callable[[str, np.ndarray, Mapping[str, Any]], np.ndarray]] = {
    "llama": _llama,
    "gemma": _gemma,
    "gemma2": _gemma,
    "gptneox": _gptneox,
}
