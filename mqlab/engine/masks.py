"""Sets of tokens as bits: uint32 [ceil(vocab / 32)], bit i % 32 of word i // 32 set where token i is in the set."""

from __future__ import annotations

from collections.abc import Collection
from functools import lru_cache
from typing import TYPE_CHECKING, TypeAlias

from mqlab.errors import InvalidRequest
from mqlab.types import ModelInfo, SamplingParams

if TYPE_CHECKING:
    import numpy as np

Bits: TypeAlias = "np.ndarray"
"""uint32 [ceil(vocab / 32)]."""


def bits(ids: Collection[int] | slice, vocab: int) -> Bits:
    """The set of ``ids``, all below ``vocab``; a slice stands for the ids in it."""
    import numpy as np  # an engine without masks starts without it

    flags = np.zeros(-(-vocab // 32) * 32, bool)
    flags[ids if isinstance(ids, slice) else np.fromiter(ids, np.int64, len(ids))] = True
    return np.packbits(flags, bitorder="little").view("<u4")


def drawable(params: SamplingParams, info: ModelInfo) -> Bits | None:
    """What a request may ever draw: ``allowed_token_ids`` without the bad words of one token. None allows all. Shared: not to be changed.

    Raises:
        InvalidRequest: that is nothing, or below ``min_tokens`` nothing but end tokens and stop ids.
    """
    words = tuple(ids[0] for ids in params.bad_word_ids if len(ids) == 1)
    if params.allowed_token_ids is None and not words:
        return None
    mask = _drawable(params.allowed_token_ids, words, info.vocab_size)
    if not mask.any():
        raise InvalidRequest("allowed_token_ids and bad_words leave no token to choose from: allow more, or name fewer bad words")
    ends = (*params.stop_token_ids, *info.eos_token_ids)
    if params.min_tokens and not (mask & ~bits(ends, info.vocab_size)).any():
        reason = (
            f"min_tokens={params.min_tokens} leaves no token to choose from: allowed_token_ids and bad_words leave only end and stop ids"
        )
        raise InvalidRequest(f"{reason}; allow more, or leave out min_tokens")
    return mask


@lru_cache(maxsize=32)
def _drawable(allowed: tuple[int, ...] | None, words: tuple[int, ...], vocab: int) -> Bits:
    mask = bits(slice(vocab) if allowed is None else allowed, vocab)
    return mask & ~bits(words, vocab)
