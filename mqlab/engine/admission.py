"""From a Request to a Sequence, or to a refusal: what can never run is told so at once."""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b
from itertools import chain
from operator import index
from types import NoneType
from typing import TYPE_CHECKING, get_args

import msgspec

from mqlab.engine.masks import drawable
from mqlab.engine.sequence import Guide, Sequence
from mqlab.errors import InvalidRequest
from mqlab.params import PoolingKind, shown
from mqlab.types import ModelInfo, Pooling, Request, SamplingParams

if TYPE_CHECKING:
    from mqlab.engine.grammar import Grammars

SEED_SPAN = 2**63
MAX_PHRASES = 1024
"""Bad words of several tokens: each is compared with a text's end before each draw."""

_FIELDS = (
    ("id", (str,)),
    ("client", (int,)),
    ("priority", (int,)),
    ("salt", (str,)),
    ("epoch", (int, NoneType)),
    ("pooling", (Pooling, NoneType)),
)


def capacity(max_model_len: int, num_blocks: int, block_size: int) -> int:
    """Tokens of the longest sequence, prompt and output together, that can ever run: it must fit in context and KV pool alone."""
    return min(max_model_len, num_blocks * block_size)


class Admission:
    """What one model holds requests to.

    Args:
        info: of the model.
        max_logprobs: most likeliest tokens that may be asked for at a position; -1 sets no limit.
        grammars: follows ``structured_outputs``; a core that masks nothing has none, and refuses them.
    """

    def __init__(self, info: ModelInfo, max_logprobs: int = -1, grammars: Grammars | None = None) -> None:
        self._info = info
        self._max_logprobs = max_logprobs
        self._grammars = grammars

    def admit(self, request: Request, fallback_seed: int) -> Sequence:
        """The sequence for a request that ``check_fields`` has passed.

        A sequence that would outgrow the KV pool although it runs alone ends with "length", as at the context limit: ``max_new`` is
        cut to what both can hold, so nothing is ever admitted that cannot be finished.

        Args:
            fallback_seed: in [0, 2**63), for a request without a seed.

        Raises:
            InvalidRequest: empty prompt, ids outside the vocabulary, prompt without room for one new token where one is wanted, a value
                of a wrong type or above a limit, parameters that leave no token to choose, a grammar that cannot be followed.
        """
        info = self._info
        tokens = _ids(request.prompt, "prompt", info)
        params = _typed(request.params)
        scores_only = request.pooling is not None or params.max_tokens == 0
        _check_length(len(tokens), info, 0 if scores_only else 1)
        self._check_params(params)
        room = capacity(info.max_model_len, info.num_blocks, info.block_size) - len(tokens)
        return Sequence(
            id=request.id,
            client=request.client,
            params=params,
            seed=fallback_seed if params.seed is None else params.seed % SEED_SPAN,
            tokens=tokens,
            num_prompt=len(tokens),
            max_new=0 if scores_only else room if params.max_tokens is None else min(params.max_tokens, room),
            eos=info.eos_token_ids,
            priority=request.priority,
            salt=request.salt,
            pooling=self._pooling(request),
            mask=drawable(params, info),
            guide=None if scores_only else self._guide(params),
        )

    def _check_params(self, params: SamplingParams) -> None:
        info = self._info
        for field in ("stop_token_ids", "logit_bias", "allowed_token_ids"):
            if ids := getattr(params, field):
                _ids(ids, field, info)
        if params.bad_word_ids:
            _ids(chain.from_iterable(params.bad_word_ids), "bad_word_ids", info)
            _check_phrases(params)
        if params.min_tokens:
            _check_choice_left(params, info)
        self._check_logprobs(params, "logprobs")
        self._check_logprobs(params, "prompt_logprobs")

    def _check_logprobs(self, params: SamplingParams, field: str) -> None:
        count, vocab = getattr(params, field), self._info.vocab_size
        limit = vocab if self._max_logprobs == -1 else self._max_logprobs
        if count is not None and (vocab if count == -1 else count) > limit:
            raise InvalidRequest(f"{field}={count} asks for too many; at most {limit} are given: ask for fewer, or raise --max-logprobs")

    def _pooling(self, request: Request) -> Pooling | None:
        if request.pooling is not None and not self._info.hidden_size:
            raise InvalidRequest(f"pooling={request.pooling.kind!r}: the engine of {self._info.name!r} gives no embeddings; leave it out")
        return request.pooling

    def _guide(self, params: SamplingParams) -> Guide | None:
        if params.structured_outputs is None:
            return None
        if self._grammars is None:
            reason = f"structured_outputs: the engine of {self._info.name!r} masks no tokens, so it follows no grammar"
            raise InvalidRequest(f"{reason}; leave it out, or serve a model")
        return self._grammars.guide(params.structured_outputs, params.ignore_eos)


def check_fields(request: Request) -> None:
    """Types of what goes with prompt and parameters.

    Raises:
        InvalidRequest: one is wrong, and would end the engine further on.
    """
    # msgpack has checked them on their way in; pickle and a core in the caller's process have not.
    for field, types in _FIELDS:
        value = getattr(request, field)
        if type(value) not in types:
            raise InvalidRequest(f"request.{field}={shown(value)} must be of type {' or '.join(one.__name__ for one in types)}")
        if type(value) is int and not -SEED_SPAN <= value < SEED_SPAN:
            raise InvalidRequest(f"request.{field} must fit in 64 bits")
    for field in ("id", "salt"):
        text = getattr(request, field)
        if not text.isascii() and not _encodable(text):
            raise InvalidRequest(f"request.{field}={shown(text)} holds half of a surrogate pair, not a character")
    pooling = request.pooling
    if pooling is not None and not (pooling.kind in get_args(PoolingKind) and type(pooling.normalize) is bool):
        raise InvalidRequest(f"request.pooling={shown(pooling)} must be one of {', '.join(get_args(PoolingKind))}, normalized or not")


def _encodable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


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
        raise InvalidRequest(f"{field} holds token id {shown(wrong)}; the vocabulary of {info.name!r} has ids 0 to {info.vocab_size - 1}")
    return ids


def _typed(params: SamplingParams) -> SamplingParams:
    # As with the other fields; a runner would die of them.
    try:
        return msgspec.convert(msgspec.to_builtins(params), SamplingParams)
    except (ValueError, TypeError, OverflowError, RecursionError) as error:
        raise InvalidRequest(f"sampling parameters: {error!s:.300}") from error


def _check_phrases(params: SamplingParams) -> None:
    count = sum(len(ids) > 1 for ids in params.bad_word_ids)
    if count > MAX_PHRASES:
        raise InvalidRequest(f"bad_words come to {count} sequences of several tokens; at most {MAX_PHRASES} are looked for: name fewer")


def _check_choice_left(params: SamplingParams, info: ModelInfo) -> None:
    """Below ``min_tokens`` end tokens and stop ids are masked: something must be left to choose from."""
    ends = {*params.stop_token_ids, *info.eos_token_ids}
    if len(ends) >= info.vocab_size:
        remedy = "name fewer stop_token_ids, or leave out min_tokens"
        raise InvalidRequest(f"min_tokens={params.min_tokens} with {len(ends)} end and stop ids leaves no token to choose from: {remedy}")


def _check_length(length: int, info: ModelInfo, new: int) -> None:
    """``new``: tokens that it must have room for."""
    if not length:
        raise InvalidRequest("prompt has 0 tokens; it needs at least 1: give some text, or start from the begin or end token's id")
    pool = info.num_blocks * info.block_size
    answer = " and one is for the answer" if new else ""
    if length + new > info.max_model_len:
        limit, remedy = info.max_model_len - new, f"the context holds {info.max_model_len}{answer}: raise --max-model-len"
    elif length + new > pool:
        held = f"the KV pool holds {pool} ({info.num_blocks} blocks of {info.block_size})"
        limit, remedy = pool - new, f"{held}{answer}: raise --num-kv-blocks or --kv-cache-gb"
    elif length + new > info.max_prompt_len + 1:
        limit = info.max_prompt_len + 1 - new
        remedy = "the engine's own limit: raise --max-model-len, --num-kv-blocks or --kv-cache-gb"
    else:
        return
    raise InvalidRequest(f"prompt has {length} tokens; at most {limit} fit: {remedy}, or shorten the prompt")
