"""What callers may give, and the refusal of what cannot run. Numbers in a refusal are true, remedies are named.

All of it is checked before anything reaches an engine: a value of a wrong type would not even survive the wire.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from operator import index
from typing import Any, get_args

import msgspec

from mqlab.errors import InvalidRequest
from mqlab.params import PoolingKind, StructuredOutputs
from mqlab.types import ModelInfo, Pooling, SamplingParams, Tokens


@dataclass(frozen=True, slots=True)
class ChatPrompt:
    """A conversation, and how the chat template is to print it.

    Attributes:
        messages: each with ``role`` and ``content``.
        options: of ChatTemplate.render: tools, documents, whether to open a turn, …
    """

    messages: Sequence[Mapping[str, Any]]
    options: Mapping[str, Any] = field(default_factory=dict)


Prompt = str | Sequence[int] | Sequence[Mapping[str, Any]] | ChatPrompt | Tokens
"""Text, token ids (of whichever model is loaded, or of the one that they name) or chat messages."""

_POOLINGS: tuple[PoolingKind, ...] = get_args(PoolingKind)


def as_chat(prompt: Any) -> ChatPrompt | None:
    """``prompt`` if it is a conversation, or is meant as chat messages: a sequence that starts with one."""
    if isinstance(prompt, ChatPrompt):
        return prompt
    messages = isinstance(prompt, Sequence) and len(prompt) > 0 and isinstance(prompt[0], Mapping)
    return ChatPrompt(prompt) if messages else None


def checked_params(params: SamplingParams) -> SamplingParams:
    """Sampling parameters whose fields have their types; a single stop string or bad word becomes a tuple of one.

    Raises:
        InvalidRequest: a field has another type; the message names it.
    """
    if not isinstance(params, SamplingParams):
        raise InvalidRequest(f"params={params!r:.80} must be SamplingParams")
    fields = msgspec.structs.asdict(params)
    for name in ("stop", "bad_words"):
        if isinstance(fields[name], str):
            fields[name] = (fields[name],)
    if isinstance(params.structured_outputs, StructuredOutputs):
        fields["structured_outputs"] = msgspec.structs.asdict(params.structured_outputs)
    try:
        params = msgspec.convert(fields, SamplingParams)
    except (msgspec.ValidationError, OverflowError) as error:
        raise InvalidRequest(f"sampling params: {error}") from None
    _check_texts(params)
    return params


def _check_texts(params: SamplingParams) -> None:
    for name in ("stop", "bad_words"):
        for text in getattr(params, name):
            check_unicode(text, name)
    if (wanted := params.structured_outputs) is not None:
        value = getattr(wanted, wanted.kind)
        for text in value if isinstance(value, tuple) else (value,) if isinstance(value, str) else ():
            check_unicode(text, f"structured_outputs.{wanted.kind}")


def checked_pooling(kind: str, normalize: bool) -> Pooling:
    """How to embed.

    Raises:
        InvalidRequest: an unknown kind, or ``normalize`` is no bool.
    """
    if kind not in _POOLINGS:
        raise InvalidRequest(f"pooling={kind!r:.80} must be one of {', '.join(_POOLINGS)}")
    if not isinstance(normalize, bool):
        raise InvalidRequest(f"normalize={normalize!r:.80} must be true or false")
    return Pooling(kind, normalize)


def check_unicode(text: str, field: str) -> None:
    """Refuse what no tokenizer and no wire takes.

    Raises:
        InvalidRequest: ``text`` is no string, or holds half of a surrogate pair.
    """
    if not isinstance(text, str):
        raise InvalidRequest(f"{field}={text!r:.80} must be a string")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidRequest(f"{field} holds {text[error.start]!r} at {error.start}: half of a surrogate pair, not a character") from None


def room_for(params: SamplingParams) -> int:
    """Tokens that the context must hold beside the prompt, at least: none where the prompt is only to be scored."""
    return 0 if params.max_tokens == 0 else 1


def checked_ids(prompt: Any, info: ModelInfo, room: int = 1) -> list[int]:
    """Token ids as a list of plain ints.

    Any iterable of integers will do (an array, a tensor), but not bytes, and no bools.

    Raises:
        InvalidRequest: something else, none at all, outside of the vocabulary, or more than ever fit.
    """
    ids = _plain_ints(prompt)
    check_length(len(ids), info, room)
    low, high = min(ids), max(ids)
    if low < 0 or high >= info.vocab_size:
        wrong = low if low < 0 else high
        raise InvalidRequest(f"prompt holds token id {wrong}; the vocabulary of {info.name!r} has ids 0 to {info.vocab_size - 1}")
    return ids


def check_length(count: int, info: ModelInfo, room: int = 1) -> None:
    """Refuse a prompt of ``count`` tokens that can never run with ``room`` new ones.

    Raises:
        InvalidRequest: it is empty, or too long.
    """
    if not count:
        raise InvalidRequest("the prompt has 0 tokens; it needs at least 1: give some text, or start from the begin or end token's id")
    if count > _most(info, room):
        raise InvalidRequest(f"the prompt has {count} tokens; {_limit(info, room)}")


def check_characters(text: str, longest_token: int, info: ModelInfo, room: int = 1) -> None:
    """Refuse text that is too long even if each token were the longest one: no need to tokenise megabytes to know.

    Raises:
        InvalidRequest: it cannot fit.
    """
    least = len(text) // longest_token
    if least > _most(info, room):
        raise InvalidRequest(f"the prompt has {len(text)} characters, at least {least} tokens; {_limit(info, room)}")


def _most(info: ModelInfo, room: int) -> int:
    return info.max_prompt_len + 1 - room


def _limit(info: ModelInfo, room: int) -> str:
    held = f"the context holds {info.max_model_len}"
    remedy = "--max-model-len"
    pool = info.num_blocks * info.block_size
    if info.max_prompt_len < info.max_model_len - 1:
        held, remedy = f"{held} and the KV pool {pool}", "--num-kv-blocks or --kv-cache-gb"
    answer = ", and one is for the answer" if room else ""
    return f"at most {_most(info, room)} fit ({held}{answer}): shorten the prompt or raise {remedy}"


def _plain_ints(prompt: Any) -> list[int]:
    if isinstance(prompt, str | bytes | bytearray | memoryview | Mapping):
        raise InvalidRequest(f"the prompt is of type {type(prompt).__name__}; {_FORMS}")
    try:
        values = list(prompt)
    except TypeError:
        raise InvalidRequest(f"the prompt {prompt!r:.80} is of type {type(prompt).__name__}; {_FORMS}") from None
    return values if all(type(value) is int for value in values) else [_plain_int(i, value) for i, value in enumerate(values)]


def _plain_int(position: int, value: Any) -> int:
    if not isinstance(value, bool):
        try:
            return index(value)
        except TypeError:
            pass
    raise InvalidRequest(f"prompt[{position}]={value!r:.80} is of type {type(value).__name__}, not a token id; {_FORMS}")


_FORMS = "a prompt is text, a list of token ids, or a list of chat messages"
