"""GGUF metadata to tokenizer.json and tokenizer_config.json.

A GGUF file carries vocabulary, merges and token kinds, but names its pre-tokenizer only (``tokenizer.ggml.pre``). What the
names mean is llama.cpp's knowledge (src/llama-vocab.cpp); the ones below are byte-level BPE, as GPT-2 has it.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors

from mqlab.errors import ModelError
from mqlab.models.gguf_config import Metadata

_SPLIT_DIGITS = {"gpt-2": False, "smollm": True, "starcoder": True, "refact": True}
"""Pre-tokenizers by name, and whether each digit stands alone (without this, ids differ on every number)."""


class _Kind(IntEnum):
    """llama.cpp's llama_token_type, the two that text is searched for before it is split."""

    CONTROL = 3
    USER_DEFINED = 4


def build_tokenizer(meta: Metadata) -> Tokenizer:
    """The file's tokenizer; control tokens are special and, like user-defined ones, never split.

    Raises:
        ModelError: a tokenizer model or pre-tokenizer that is not known here.
    """
    digits = _require_known(meta)
    tokens: list[str] = meta.get("tokenizer.ggml.tokens")
    merges = [tuple(merge.split(" ", 1)) for merge in meta.get("tokenizer.ggml.merges")]
    tokenizer = Tokenizer(models.BPE(vocab={token: i for i, token in enumerate(tokens)}, merges=merges))
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    steps = [pre_tokenizers.Digits(individual_digits=True), byte_level] if digits else [byte_level]
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(steps)
    tokenizer.decoder = decoders.ByteLevel()
    _add_whole_tokens(tokenizer, tokens, meta.get("tokenizer.ggml.token_type", []))
    _add_start_token(tokenizer, tokens, meta)
    return tokenizer


def tokenizer_config(meta: Metadata) -> dict[str, Any]:
    """What transformers and the chat template need beside tokenizer.json: names of special tokens and the template.

    The class is the plain wrapper of tokenizer.json: under a named one, transformers 5 rebuilds the pre-tokenizer and loses
    the digit split.
    """
    tokens = meta.get("tokenizer.ggml.tokens")
    roles = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}
    ids = {name: meta.token_id(role) for name, role in roles.items()}
    config: dict[str, Any] = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False}
    config["model_max_length"] = meta.get("llama.context_length")
    config |= {name: tokens[i] for name, i in ids.items() if i is not None}
    template = meta.get("tokenizer.chat_template", None)
    return config | ({"chat_template": template} if template else {})


def _require_known(meta: Metadata) -> bool:
    model, pre = meta.get("tokenizer.ggml.model"), meta.get("tokenizer.ggml.pre", None)
    if model != "gpt2":
        raise ModelError(
            f"{meta.source} has a {model!r} tokenizer; only 'gpt2' (byte-level BPE) is read from GGUF, so pass a Hugging Face folder"
        )
    if pre not in _SPLIT_DIGITS:
        known = ", ".join(_SPLIT_DIGITS)
        raise ModelError(f"{meta.source} names the pre-tokenizer {pre!r}, which is not one of {known}; pass a Hugging Face folder")
    return _SPLIT_DIGITS[pre]


def _add_whole_tokens(tokenizer: Tokenizer, tokens: list[str], kinds: list[int]) -> None:
    for kind, special in ((_Kind.CONTROL, True), (_Kind.USER_DEFINED, False)):
        whole = [AddedToken(t, normalized=False, special=special) for t, k in zip(tokens, kinds, strict=False) if k == kind]
        (tokenizer.add_special_tokens if special else tokenizer.add_tokens)(whole)


def _add_start_token(tokenizer: Tokenizer, tokens: list[str], meta: Metadata) -> None:
    start = meta.token_id("bos")
    if start is None or not meta.get("tokenizer.ggml.add_bos_token", False):
        return
    name = tokens[start]
    tokenizer.post_processor = processors.TemplateProcessing(f"{name} $A", f"{name} $A {name} $B", [(name, start)])
