"""GGUF metadata to config.json and generation_config.json."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGUFReader

from mqlab.errors import ModelError

_MISSING = object()


class Metadata:
    """The key-value part of a GGUF file."""

    def __init__(self, source: Path, reader: GGUFReader) -> None:
        self.source = source
        self._fields = reader.fields
        self.tensor_rows = {tensor.name: int(tensor.shape[-1]) for tensor in reader.tensors}

    def get(self, key: str, default: Any = _MISSING) -> Any:
        """The value of ``key``: a number, a string or a list.

        Raises:
            ModelError: there is none and no default was given.
        """
        if key in self._fields:
            return self._fields[key].contents()
        if default is _MISSING:
            raise ModelError(f"{self.source} has no metadata {key!r}; convert the model again with a current llama.cpp")
        return default

    def token_id(self, role: str) -> int | None:
        """The id of the token that plays ``role``: bos, eos, unknown, padding, eot."""
        return self.get(f"tokenizer.ggml.{role}_token_id", None)


def llama_config(meta: Metadata) -> dict[str, Any]:
    """The fields of transformers' LlamaConfig (5.24) that a GGUF file of architecture ``llama`` states.

    Raises:
        ModelError: another architecture, a mixture of experts, or scaled rotary positions.
    """
    _require_plain_llama(meta)
    heads = meta.get("llama.attention.head_count")
    hidden = meta.get("llama.embedding_length")
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": hidden,
        "intermediate_size": meta.get("llama.feed_forward_length"),
        "num_hidden_layers": meta.get("llama.block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": meta.get("llama.attention.head_count_kv", heads),
        "head_dim": meta.get("llama.attention.key_length", hidden // heads),
        "vocab_size": meta.tensor_rows["token_embd.weight"],
        "max_position_embeddings": meta.get("llama.context_length"),
        "rope_theta": _shortest(meta.get("llama.rope.freq_base", 10000.0)),
        "rms_norm_eps": _shortest(meta.get("llama.attention.layer_norm_rms_epsilon")),
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": "output.weight" not in meta.tensor_rows,
        "bos_token_id": meta.token_id("bos"),
        "eos_token_id": _end_ids(meta),
        "pad_token_id": meta.token_id("padding"),
        "dtype": "float32",
    }


def generation_config(config: dict[str, Any]) -> dict[str, Any]:
    """What transformers' GenerationConfig needs: the ids at which text begins and ends."""
    return {key: config[key] for key in ("bos_token_id", "eos_token_id", "pad_token_id")}


def _require_plain_llama(meta: Metadata) -> None:
    architecture = meta.get("general.architecture")
    if architecture != "llama":
        raise ModelError(
            f"{meta.source} holds architecture {architecture!r}; only 'llama' GGUF files are read, so pass a Hugging Face folder"
        )
    if meta.get("llama.expert_count", 0):
        raise ModelError(f"{meta.source} holds a mixture of {meta.get('llama.expert_count')} experts, which is not read from GGUF")
    scaling = meta.get("llama.rope.scaling.type", "none")
    if scaling != "none":
        raise ModelError(
            f"{meta.source} scales its rotary positions ({scaling!r}), which is not read from GGUF; pass a Hugging Face folder"
        )
    if "token_embd.weight" not in meta.tensor_rows:
        raise ModelError(f"{meta.source} has no tensor 'token_embd.weight'; check that the download is complete")


def _end_ids(meta: Metadata) -> int | list[int] | None:
    ids = [i for i in (meta.token_id("eos"), meta.token_id("eot")) if i is not None]
    unique = list(dict.fromkeys(ids))
    return unique if len(unique) > 1 else next(iter(unique), None)


def _shortest(value: float) -> float:
    """The shortest decimal that is this float32: 1e-05, not 9.999999747378752e-06."""
    return float(str(np.float32(value)))
