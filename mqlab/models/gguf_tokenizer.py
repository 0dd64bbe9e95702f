"""GGUF metadata to tokenizer.json and tokenizer_config.json."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from gguf import TokenType
from tokenizers import AddedToken, Tokenizer, processors

from mqlab.errors import ModelError
from mqlab.models.gguf_bpe import byte_level_bpe, pre_tokenizer_of
from mqlab.models.gguf_metadata import Metadata
from mqlab.models.gguf_spm import is_run_of_spaces, sentencepiece_bpe, stored_piece

_BUILDERS: Mapping[str, Callable[[Metadata, list[str]], Tokenizer]] = {"gpt2": byte_level_bpe, "llama": sentencepiece_bpe}
_ROLES = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}


def build_tokenizer(meta: Metadata) -> Tokenizer:
    """The file's tokenizer; control tokens are special and, like user-defined ones, never split.

    Raises:
        ModelError: a tokenizer model or pre-tokenizer that is not known here, or a part that is missing.
    """
    model = meta.get("tokenizer.ggml.model")
    if model not in _BUILDERS:
        known = "'gpt2' (byte-level BPE) and 'llama' (SentencePiece BPE) are"
        raise ModelError(f"{meta.source} has a {model!r} tokenizer; only {known} read from GGUF, so pass a Hugging Face folder")
    tokens = _without_padding(meta.tokens, meta.kinds)
    tokenizer = _BUILDERS[model](meta, tokens)
    _add_whole_tokens(tokenizer, tokens, meta.kinds)
    _add_frame(tokenizer, meta, starts=pre_tokenizer_of(meta).add_bos if model == "gpt2" else True)
    return tokenizer


def tokenizer_config(meta: Metadata) -> dict[str, Any]:
    """What transformers and the chat template need beside tokenizer.json: names of special tokens and the template.

    The class is the plain wrapper of tokenizer.json: under a named one, transformers 5 rebuilds the pre-tokenizer and loses
    the digit split.
    """
    ids = {name: meta.token_id(role) for name, role in _ROLES.items()}
    config: dict[str, Any] = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False}
    config["model_max_length"] = meta.own("context_length")
    config |= {name: meta.tokens[i] for name, i in ids.items() if i is not None}
    template = _chat_template(meta)
    return config | ({"chat_template": template} if template else {})


def _chat_template(meta: Metadata) -> str | list[dict[str, str]] | None:
    """One template, or the default and those beside it by name."""
    default = meta.get("tokenizer.chat_template", None)
    names: list[str] = meta.get("tokenizer.chat_templates", [])
    named = [{"name": name, "template": meta.get(f"tokenizer.chat_template.{name}")} for name in names]
    return [{"name": "default", "template": default}, *named] if default and named else named or default


def _without_padding(tokens: list[str], kinds: list[int]) -> list[str]:
    """Unused entries at the end stand for rows that pad the embedding; the tokenizer of the original has none for them."""
    end = len(tokens)
    while end and kinds[end - 1] == TokenType.UNUSED:
        end -= 1
    return tokens[:end]


def _add_whole_tokens(tokenizer: Tokenizer, tokens: list[str], kinds: list[int]) -> None:
    special = [token for token, kind in zip(tokens, kinds, strict=False) if kind in (TokenType.CONTROL, TokenType.UNKNOWN)]
    given = [stored_piece(token, kind) for token, kind in zip(tokens, kinds, strict=False) if kind == TokenType.USER_DEFINED]
    tokenizer.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in special])
    tokenizer.add_tokens([AddedToken(token, normalized=False) for token in given if not is_run_of_spaces(token)])


def _add_frame(tokenizer: Tokenizer, meta: Metadata, *, starts: bool) -> None:
    """The start and end tokens around a text, where the file asks for them; ``starts`` where it does not say."""
    start = meta.token_id("bos") if meta.get("tokenizer.ggml.add_bos_token", starts) else None
    end = meta.token_id("eos") if meta.get("tokenizer.ggml.add_eos_token", False) else None
    before, after = ([(meta.tokens[token], token)] if token is not None else [] for token in (start, end))
    if not before + after:
        return
    first, second = (" ".join([*dict(before), text, *dict(after)]) for text in ("$A", "$B"))
    tokenizer.post_processor = processors.TemplateProcessing(first, f"{first} {second}", before + after)
