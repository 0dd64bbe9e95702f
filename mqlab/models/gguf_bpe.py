"""Byte-level BPE out of a GGUF file (tokenizer model ``gpt2``).

The file holds vocabulary and merges, but only the name of its pre-tokenizer (``tokenizer.ggml.pre``). What each name stands for
is published in the tokenizer.json of the models that it is named after; llama.cpp's src/llama-vocab.cpp lists the names.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
from tokenizers.pre_tokenizers import PreTokenizer

from mqlab.errors import ModelError
from mqlab.models.gguf_metadata import Metadata


@dataclass(frozen=True)
class Pre:
    """What happens to text before merges.

    Attributes:
        steps: pre-tokenizers, one after the other; the last one turns bytes into letters.
        nfc: whether characters are composed first.
        whole_words: whether a word that is a token becomes it, whatever the merges say.
        add_bos: whether the start token is added where the file does not say.
    """

    steps: tuple[PreTokenizer, ...]
    nfc: bool = False
    whole_words: bool = False
    add_bos: bool = False


def _split(*patterns: str) -> tuple[PreTokenizer, ...]:
    """Each pattern cuts its matches out of the pieces that those before have left."""
    splits = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in patterns]
    return (*splits, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False))


def _words(letters: str, digits: str, rest: str = r"[\r\n]*") -> str:
    """The pattern of GPT-4's tokenizer, which others vary: words, numbers, runs of punctuation, line breaks, spaces."""
    return rf"{letters}|{digits}| ?[^\s\p{{L}}\p{{N}}]+{rest}|\s*[\r\n]+|\s+(?!\S)|\s+"


_CONTRACTED = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+"
_CASED = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
)
_GPT2_PATTERN = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"

_DIGITS = pre_tokenizers.Digits(individual_digits=True)
_GPT2 = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)

_PLAIN = Pre((_GPT2,))
_LONE_DIGITS = Pre((_DIGITS, _GPT2))
_LLAMA3 = Pre(_split(_words(_CONTRACTED, r"\p{N}{1,3}")), whole_words=True, add_bos=True)
_QWEN2 = Pre(_split(_words(_CONTRACTED, r"\p{N}")), nfc=True)

PRE_TOKENIZERS: Mapping[str, Pre] = {
    "gpt-2": _PLAIN,
    "smollm": _LONE_DIGITS,
    "starcoder": _LONE_DIGITS,
    "refact": _LONE_DIGITS,
    "olmo": Pre((_GPT2,), nfc=True),
    "llama-bpe": _LLAMA3,
    "llama3": _LLAMA3,
    "llama-v3": _LLAMA3,
    "qwen2": _QWEN2,
    "deepseek-r1-qwen": _QWEN2,
    "tekken": Pre(_split(_words(_CASED, r"\p{N}", r"[\r\n/]*")), whole_words=True, add_bos=True),
    "deepseek-coder": Pre(_split(r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", r"[一-龥ࠀ-一가-퟿]+", r"\p{N}")),
    "default": Pre(_split(r"[\p{P}\$\+<=>\^~\|]+", _GPT2_PATTERN, r"\p{N}+", r"[0-9][0-9][0-9]")),
}
"""By name. ``gpt-2`` and its kin differ in digits alone, but without that ids differ on every number."""


def byte_level_bpe(meta: Metadata, tokens: list[str]) -> Tokenizer:
    """The tokenizer without its special tokens.

    Raises:
        ModelError: a pre-tokenizer that is not known here.
    """
    pre = pre_tokenizer_of(meta)
    merges = [tuple(merge.split(" ", 1)) for merge in meta.get("tokenizer.ggml.merges")]
    vocabulary = {token: i for i, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges, ignore_merges=pre.whole_words))
    if pre.nfc:
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(list(pre.steps))
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def pre_tokenizer_of(meta: Metadata) -> Pre:
    """The pre-tokenizer that a file names.

    Raises:
        ModelError: it is not known here, or the file is so old that it names none.
    """
    name = meta.get("tokenizer.ggml.pre")
    if name not in PRE_TOKENIZERS:
        known = ", ".join(PRE_TOKENIZERS)
        raise ModelError(f"{meta.source} names the pre-tokenizer {name!r}, which is not one of {known}; pass a Hugging Face folder")
    return PRE_TOKENIZERS[name]
