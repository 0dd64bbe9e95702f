"""How tokens are chosen, and when a request ends: what a request asks for, checked where it is made."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

import msgspec

from mqlab.errors import InvalidRequest

MAX_N = 16384
MAX_STOPS = 256
"""Each is looked for in every token's text, 0.3 µs a string: a thousand of them would hold up all streams of a front."""
MAX_STOP_CHARACTERS = 16_384
_SPAN = 2**31

PoolingKind = Literal["mean", "last", "cls"]
"""Which hidden states make an embedding: the mean of all, the last token's, the first one's."""


class StructuredOutputs(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What the text of an answer must match; exactly one of these.

    Attributes:
        json: text of a JSON schema; between its tokens the answer has a space or none.
        regex: a regular expression that the whole text matches, without look-around and back references.
        choice: one of these texts.
        grammar: a context-free grammar, in the Lark syntax of llguidance.
        json_object: any JSON object.

    Raises:
        InvalidRequest: none, or more than one.
    """

    json: str | None = None
    regex: str | None = None
    choice: tuple[str, ...] | None = None
    grammar: str | None = None
    json_object: bool = False

    def __post_init__(self) -> None:
        given = self._given()
        _require(len(given) == 1, "structured_outputs", given, f"must name exactly one of {', '.join(self.__struct_fields__)}")
        if self.choice is not None:
            usable = isinstance(self.choice, Sequence) and len(self.choice) > 0 and all(self.choice)
            _require(usable, "structured_outputs.choice", self.choice, "must hold at least one text, and no empty one")

    def _given(self) -> list[str]:
        return [name for name in self.__struct_fields__ if getattr(self, name) not in (None, False)]

    @property
    def kind(self) -> str:
        """The field that is given."""
        return self._given()[0]

    @staticmethod
    def of_schema(schema: Mapping[str, Any] | str) -> StructuredOutputs:
        """Answers that match a JSON schema, given as an object or as its text.

        Raises:
            InvalidRequest: the object holds something that JSON does not.
        """
        try:
            return StructuredOutputs(json=schema if isinstance(schema, str) else json.dumps(schema, allow_nan=False))
        except (TypeError, ValueError, RecursionError) as error:
            raise InvalidRequest(f"structured_outputs.json={shown(schema)} must be plain JSON: {error!s:.200}") from error


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How tokens are chosen and when a request ends. Names and ranges are vLLM's (0.33), but for what is said here.

    Attributes:
        n: choices per prompt, each a request of its own in the core (seed + i), in [1, 16384].
        presence_penalty: taken from the logit of every token that the output holds, in [-2, 2].
        frequency_penalty: likewise, times how often the output holds it, in [-2, 2].
        repetition_penalty: divides the positive and multiplies the negative logits of tokens in prompt or output; above 0, 1 is off.
        temperature: in [0, 2]; below 1e-5 it is greedy.
        top_p: keep the smallest set of tokens with this share of probability, in (0, 1].
        top_k: keep the k likeliest tokens; 0 or -1 keeps all.
        min_p: keep tokens at least this likely in relation to the likeliest, in [0, 1].
        seed: the tokens of a seeded request depend on this alone, never on its neighbours.
        stop: strings that end the text, at most 256 of at most 16,384 characters; found by the front, so the core overshoots.
        stop_token_ids: token ids that end the request; the id is in ``tokens``, its text is not in the text.
        bad_words: words that the text must not hold; the front turns them into ``bad_word_ids``.
        bad_word_ids: token sequences that must not be completed.
        include_stop_str_in_output: keep the stop string in the text.
        ignore_eos: go on after the model's end token.
        max_tokens: new tokens at most; None means up to the context limit, 0 only scores the prompt.
        min_tokens: end tokens and stop ids are masked before this many new tokens.
        logprobs: of each new token, and of this many likeliest ones; -1 means of all. None gives none.
        prompt_logprobs: likewise of each token of the prompt but the first.
        logit_bias: added to the logits of these ids, in [-100, 100]; at either end it forces or bans.
        allowed_token_ids: no others are chosen.
        skip_special_tokens: leave special tokens out of the text.
        structured_outputs: what the text must match, unless a length limit cuts it. It ends where nothing may follow, ``ignore_eos`` or
            not; if that is below ``min_tokens``, the request fails.

    Raises:
        InvalidRequest: a value is out of its range; the message names field, value and limit.
    """

    n: int = 1
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    bad_words: tuple[str, ...] = ()
    bad_word_ids: tuple[tuple[int, ...], ...] = ()
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    max_tokens: int | None = 16
    min_tokens: int = 0
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    logit_bias: dict[int, float] = {}
    allowed_token_ids: tuple[int, ...] | None = None
    skip_special_tokens: bool = True
    structured_outputs: StructuredOutputs | None = None

    def __post_init__(self) -> None:
        try:
            self._check()
        except (TypeError, OverflowError, AttributeError) as error:
            raise InvalidRequest(f"sampling parameters: {self._mistyped() or error}") from error

    def _mistyped(self) -> str:
        """Which field has a wrong type."""
        try:
            msgspec.convert(msgspec.structs.asdict(self), SamplingParams)
        except (msgspec.ValidationError, OverflowError) as error:
            return str(error)
        return ""

    def _check(self) -> None:
        _require(1 <= self.n <= MAX_N, "n", self.n, f"must be in [1, {MAX_N}]")
        self._check_chances()
        self._check_penalties()
        self._check_lengths()
        self._check_words()
        for name in ("logprobs", "prompt_logprobs"):
            count = getattr(self, name)
            _require(count is None or -1 <= count < _SPAN, name, count, "must be at least 0, or -1 for the whole vocabulary")

    def _check_chances(self) -> None:
        in_range = math.isfinite(self.temperature) and 0 <= self.temperature <= 2
        _require(in_range, "temperature", self.temperature, "must be in [0, 2]; 0 is greedy")
        _require(0 < self.top_p <= 1, "top_p", self.top_p, "must be in (0, 1]; 1 turns it off")
        _require(-1 <= self.top_k < _SPAN, "top_k", self.top_k, "must be at least 1 and below 2**31, or 0 or -1 to turn it off")
        _require(0 <= self.min_p <= 1, "min_p", self.min_p, "must be in [0, 1]; 0 turns it off")
        _require(self.seed is None or -(2**63) <= self.seed < 2**63, "seed", self.seed, "must fit in 64 bits")

    def _check_penalties(self) -> None:
        for name in ("presence_penalty", "frequency_penalty"):
            value = getattr(self, name)
            _require(-2 <= value <= 2, name, value, "must be in [-2, 2]; 0 turns it off")
        repetition = self.repetition_penalty
        usable = math.isfinite(repetition) and repetition > 0
        _require(usable, "repetition_penalty", repetition, "must be a finite number above 0; 1 turns it off")

    def _check_lengths(self) -> None:
        usable = self.max_tokens is None or 0 <= self.max_tokens < _SPAN
        _require(usable, "max_tokens", self.max_tokens, "must be at least 0 and below 2**31, or None for the context limit")
        _require(0 <= self.min_tokens < _SPAN, "min_tokens", self.min_tokens, "must be at least 0 and below 2**31")
        if self.max_tokens is not None:
            _require(self.min_tokens <= self.max_tokens, "min_tokens", self.min_tokens, f"must not exceed max_tokens ({self.max_tokens})")

    def _check_words(self) -> None:
        _require(all(self.stop), "stop", self.stop, "must not hold an empty string")
        few = len(self.stop) <= MAX_STOPS and all(len(text) <= MAX_STOP_CHARACTERS for text in self.stop)
        _require(few, "stop", self.stop, f"must hold at most {MAX_STOPS} strings, each of at most {MAX_STOP_CHARACTERS} characters")
        _require(all(self.bad_words), "bad_words", self.bad_words, "must not hold an empty string")
        _require(all(self.bad_word_ids), "bad_word_ids", self.bad_word_ids, "must not hold an empty sequence")
        for token, bias in self.logit_bias.items():
            _require(-100 <= bias <= 100, f"logit_bias[{token}]", bias, "must be in [-100, 100]")
        for name in ("stop_token_ids", "allowed_token_ids", "logit_bias"):
            _check_ids(name, getattr(self, name) or ())
        for ids in self.bad_word_ids:
            _check_ids("bad_word_ids", ids)
        some = self.allowed_token_ids is None or len(self.allowed_token_ids) > 0
        _require(some, "allowed_token_ids", self.allowed_token_ids, "must hold at least one token id; leave it out to allow all")

    @property
    def greedy(self) -> bool:
        """Whether the likeliest token is always taken."""
        return self.temperature < 1e-5 or self.top_k == 1

    @property
    def penalised(self) -> bool:
        """Whether earlier tokens change the logits of later ones."""
        return self.presence_penalty != 0 or self.frequency_penalty != 0 or self.repetition_penalty != 1

    @property
    def steers(self) -> bool:
        """Whether a draw needs the token before it on the engine's side: such a request never runs ahead."""
        return self.penalised or self.structured_outputs is not None or any(len(ids) > 1 for ids in self.bad_word_ids)


def _check_ids(field: str, ids: Iterable[int]) -> None:
    _require(all(0 <= i < _SPAN for i in ids), field, ids, "must hold token ids, 0 or above")


def _require(ok: bool, field: str, value: object, limit: str) -> None:
    if not ok:
        raise InvalidRequest(f"{field}={shown(value)} {limit}")


def shown(value: object) -> str:
    """The beginning of what it looks like, for a message; of whatever there may be in a request."""
    try:
        return f"{value!r:.200}"
    except Exception:  # an integer of 5000 digits has no text, and a list too deep has none
        return f"<{type(value).__name__}>"


class Pooling(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Embed the prompt: one vector of its final hidden states.

    Attributes:
        kind: their mean, the last token's, or the first one's.
        normalize: to length 1.
    """

    kind: PoolingKind = "mean"
    normalize: bool = True
