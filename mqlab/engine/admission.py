"""From a Request to a Sequence, or to a refusal: what can never run is told so at once."""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b
from operator import index

import msgspec

from mqlab.engine.sequence import Sequence
from mqlab.errors import InvalidRequest
from mqlab.types import ModelInfo, Request, SamplingParams

SEED_SPAN = 2**63


def capacity(max_model_len: int, num_blocks: int, block_size: int) -> int:
    """Tokens of the longest sequence, prompt and output together, that can ever run: it must fit in context and KV pool alone."""
    return min(max_model_len, num_blocks * block_size)


def admit(request: Request, info: ModelInfo, fallback_seed: int) -> Sequence:
    """The sequence for a request.

    A sequence that would outgrow the KV pool although it runs alone ends with "length", as at the context limit: ``max_new`` is
    cut to what both can hold, so nothing is ever admitted that cannot be finished.

    Args:
        fallback_seed: in [0, 2**63), for a request without a seed.

    Raises:
        InvalidRequest: empty prompt, ids outside the vocabulary, prompt without room for one new token, parameters of a wrong type.
    """
    tokens = _ids(request.prompt, "prompt", info)
    _check_length(len(tokens), info)
    params = _typed(request.params)
    _ids(params.stop_token_ids, "stop_token_ids", info)
    _check_choice_left(params, info)
    room = capacity(info.max_model_len, info.num_blocks, info.block_size) - len(tokens)
    return Sequence(
        id=request.id,
        client=request.client,
        params=params,
        seed=fallback_seed if params.seed is None else params.seed % SEED_SPAN,
        tokens=tokens,
        num_prompt=len(tokens),
        max_new=room if params.max_tokens is None else min(params.max_tokens, room),
    )


def derived_seed(seed: int, arrival: int) -> int:
    """The seed, in [0, 2**63), of the ``arrival``-th request of a core whose configured seed is ``seed``."""
    digest = blake2b(f"{seed}:{arrival}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") % SEED_SPAN


def _ids(values: Iterable[int], field: str, info: ModelInfo) -> list[int]:
    try:
        ids = list(map(index, values))
    except TypeError as error:
        raise InvalidRequest(f"{field} must hold token ids (integers): {error}") from error
    if ids and not (min(ids) >= 0 and max(ids) < info.vocab_size):
        wrong = next(i for i in ids if not 0 <= i < info.vocab_size)
        raise InvalidRequest(f"{field} holds token id {wrong}; the vocabulary of {info.name!r} has ids 0 to {info.vocab_size - 1}")
    return ids


def _typed(params: SamplingParams) -> SamplingParams:
    # msgpack has checked types on its way in; pickle and a core in the caller's process have not, and a runner would die of them.
    try:
        return msgspec.convert(msgspec.to_builtins(params), SamplingParams)
    except (msgspec.ValidationError, TypeError) as error:
        raise InvalidRequest(f"sampling parameters: {error}") from error


def _check_choice_left(params: SamplingParams, info: ModelInfo) -> None:
    """Below ``min_tokens`` end tokens and stop ids are masked: something must be left to choose from."""
    ends = {*params.stop_token_ids, *info.eos_token_ids}
    if params.min_tokens and len(ends) >= info.vocab_size:
        remedy = "name fewer stop_token_ids, or leave out min_tokens"
        raise InvalidRequest(f"min_tokens={params.min_tokens} with {len(ends)} end and stop ids leaves no token to choose from: {remedy}")


def _check_length(length: int, info: ModelInfo) -> None:
    if not length:
        raise InvalidRequest("prompt has 0 tokens; it needs at least 1: give some text, or start from the begin or end token's id")
    pool = info.num_blocks * info.block_size
    if length >= info.max_model_len:
        limit, remedy = info.max_model_len - 1, f"the context holds {info.max_model_len} and one is for the answer: raise --max-model-len"
    elif length >= pool:
        held = f"the KV pool holds {pool} ({info.num_blocks} blocks of {info.block_size})"
        limit, remedy = pool - 1, f"{held} and one is for the answer: raise --num-kv-blocks or --kv-cache-gb"
    elif length > info.max_prompt_len:
        limit, remedy = info.max_prompt_len, "the engine's own limit: raise --max-model-len, --num-kv-blocks or --kv-cache-gb"
    else:
        return
    raise InvalidRequest(f"prompt has {length} tokens; at most {limit} fit: {remedy}, or shorten the prompt")
