"""The bodies of the OpenAI routes, checked: null is the same as absent, unknown fields are ignored, wrong types are refused.

Fields beyond OpenAI's carry vLLM's names: top_k, min_p, repetition_penalty, min_tokens, ignore_eos, stop_token_ids,
include_stop_str_in_output, skip_special_tokens, bad_words, allowed_token_ids, prompt_logprobs, structured_outputs, guided_*, priority,
cache_salt. A known field whose effect is not offered is refused unless its value asks for nothing.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, TypeVar

import msgspec

from mqlab.params import StructuredOutputs
from mqlab.server.errors import ApiError, bad_request
from mqlab.server.shapes import ResponseFormat, Schema, Structured, only_one
from mqlab.types import SamplingParams

Int = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
B = TypeVar("B", bound="Generation")

_NOT_OFFERED: dict[str, Any] = {
    "top_logprobs": 0,
    "echo": False,
    "best_of": 1,
    "suffix": "",
    "use_beam_search": False,
    "tools": [],
    "functions": [],
    "tool_choice": "none",
    "modalities": ["text"],
    "audio": None,
    "add_generation_prompt": True,
    "continue_final_message": False,
    "chat_template": None,
    "chat_template_kwargs": {},
    "documents": [],
    "length_penalty": 1,
    "truncate_prompt_tokens": None,
    "return_token_ids": False,
    "prompt_embeds": None,
}
"""Known fields without effect here (or on the other route only), with the value that asks for nothing."""

MAX_TOP_LOGPROBS = 20
"""OpenAI's limit in chats."""

_NUMBER = re.compile(r"-?(0|[1-9][0-9]{0,17})")
_PATH = re.compile(r" - at `\$\.(\w+)")
_MISSING = re.compile(r"required field `(\w+)`")


class StreamOptions(msgspec.Struct, frozen=True):
    """How to stream."""

    include_usage: bool | None = None


class Generation(msgspec.Struct, frozen=True, kw_only=True):
    """What both routes share; defaults are OpenAI's."""

    model: str | None = None
    n: Int = 1
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: Int = 0
    seed: Int | None = None
    max_tokens: Int | None = None
    min_tokens: Int = 0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: dict[str, float] = {}
    bad_words: list[str] = []
    allowed_token_ids: list[Int] | None = None
    stop: str | list[str] = []
    stop_token_ids: list[Int] = []
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    skip_special_tokens: bool = True
    prompt_logprobs: Int | None = None
    response_format: ResponseFormat | None = None
    structured_outputs: Structured | None = None
    guided_json: Schema | str | None = None
    guided_regex: str | None = None
    guided_choice: list[str] | None = None
    guided_grammar: str | None = None
    priority: Int = 0
    cache_salt: str = ""
    stream: bool = False
    stream_options: StreamOptions | None = None

    @property
    def include_usage(self) -> bool:
        """Whether a stream ends with an event that has the usage."""
        return self.stream_options is not None and bool(self.stream_options.include_usage)

    @property
    def limit(self) -> int | None:
        """New tokens at most; None means up to the context."""
        return self.max_tokens

    @property
    def scores(self) -> int | None:
        """Likeliest tokens to give the logprobs of, in the place of each new one; None gives none at all."""
        return None

    @property
    def echoes(self) -> bool:
        """Whether each choice begins with the prompt."""
        return False

    @property
    def prompt_scores(self) -> int | None:
        """Likeliest tokens to give the logprobs of, in the place of each token of the prompt."""
        asked = [count for count in (self.prompt_logprobs, self.scores if self.echoes else None) if count is not None]
        return -1 if -1 in asked else max(asked, default=None)

    def params(self) -> SamplingParams:
        """The sampling parameters.

        Raises:
            InvalidRequest, ApiError: one is out of its range.
        """
        return SamplingParams(
            n=self.n,
            presence_penalty=self.presence_penalty,
            frequency_penalty=self.frequency_penalty,
            repetition_penalty=self.repetition_penalty,
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=self.top_k,
            min_p=self.min_p,
            seed=self.seed,
            max_tokens=self.limit,
            min_tokens=self.min_tokens,
            stop=(self.stop,) if isinstance(self.stop, str) else tuple(self.stop),
            stop_token_ids=tuple(self.stop_token_ids),
            bad_words=tuple(self.bad_words),
            include_stop_str_in_output=self.include_stop_str_in_output,
            ignore_eos=self.ignore_eos,
            logprobs=self.scores,
            prompt_logprobs=self.prompt_scores,
            logit_bias={_token_id(key): bias for key, bias in self.logit_bias.items()},
            allowed_token_ids=None if self.allowed_token_ids is None else tuple(self.allowed_token_ids),
            skip_special_tokens=self.skip_special_tokens,
            structured_outputs=self._structured(),
        )

    def _structured(self) -> StructuredOutputs | None:
        names = [name for name in ("json", "regex", "choice", "grammar") if getattr(self, f"guided_{name}") is not None]
        guided = {f"guided_{name}": Structured(**{name: getattr(self, f"guided_{name}")}).outputs() for name in names}
        whole = {"response_format": self.response_format, "structured_outputs": self.structured_outputs}
        return only_one(guided | {name: None if asked is None else asked.outputs() for name, asked in whole.items()})


class CompletionBody(Generation, frozen=True, kw_only=True):
    """POST /v1/completions: text, several texts, token ids or several lists of them; 16 new tokens unless told otherwise."""

    prompt: str | list[str | Int | list[Int]]
    max_tokens: Int | None = 16
    logprobs: Int | None = None
    echo: bool = False

    @property
    def scores(self) -> int | None:
        """See Generation.scores."""
        return self.logprobs

    @property
    def echoes(self) -> bool:
        """See Generation.echoes."""
        return self.echo


class ChatBody(Generation, frozen=True, kw_only=True):
    """POST /v1/chat/completions; answers up to the context limit unless told otherwise."""

    messages: Annotated[list[dict[str, Any]], msgspec.Meta(min_length=1)]
    max_completion_tokens: Int | None = None
    logprobs: bool = False
    top_logprobs: Int | None = None

    @property
    def limit(self) -> int | None:
        """``max_completion_tokens``, or the older ``max_tokens``."""
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens

    @property
    def scores(self) -> int | None:
        """See Generation.scores."""
        return (self.top_logprobs or 0) if self.logprobs else None

    def params(self) -> SamplingParams:
        """See Generation.params."""
        if self.top_logprobs is not None and not 0 <= self.top_logprobs <= MAX_TOP_LOGPROBS:
            raise bad_request(f"top_logprobs={self.top_logprobs} must be in [0, {MAX_TOP_LOGPROBS}]", "top_logprobs")
        if self.top_logprobs is not None and not self.logprobs:
            raise bad_request(f"top_logprobs={self.top_logprobs} needs logprobs=true", "top_logprobs")
        return super().params()


def decode(data: bytes, kind: type[B]) -> B:
    """The body of a request.

    Raises:
        ApiError: 400, with the field that is to blame.
    """
    given = {name: value for name, value in _object(data).items() if value is not None}
    for name, neutral in _NOT_OFFERED.items():
        if name in given and name not in kind.__struct_fields__ and not _same(given[name], neutral):
            raise bad_request(f"{name}={given[name]!r:.200} is not offered by this server; leave it out", name, "unsupported_parameter")
    try:
        body = msgspec.convert(given, kind)
    except msgspec.ValidationError as error:
        raise _refused(error) from None
    if body.stream_options is not None and not body.stream:
        raise bad_request("stream_options is only allowed with stream=true", "stream_options")
    if body.prompt_logprobs is not None and body.stream:
        raise bad_request("prompt_logprobs is not available with stream=true; leave one of the two out", "prompt_logprobs")
    return body


def _token_id(key: str) -> int:
    """JSON has no other keys than strings; each number has one spelling, so that no key stands for another."""
    if not _NUMBER.fullmatch(key):
        raise bad_request(f"logit_bias has the key {key!r:.80}; keys are token ids", "logit_bias")
    return int(key)


def _object(data: bytes) -> dict[str, Any]:
    try:
        given = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise bad_request(f"the body is not valid JSON: {error}", code="invalid_json") from None
    if not isinstance(given, dict):
        raise bad_request(f"the body must be a JSON object, not {type(given).__name__}", code="invalid_json")
    return given


def _refused(error: msgspec.ValidationError) -> ApiError:
    found = _PATH.search(str(error)) or _MISSING.search(str(error))
    param = found[1] if found else None
    text = str(error).partition(" - at ")[0]
    return bad_request(text if param is None or f"`{param}`" in text else f"{param}: {text}", param)


def _same(value: Any, neutral: Any) -> bool:
    """Equal, and both or neither of them a bool: 0 asks for something where False does not."""
    return value == neutral and isinstance(value, bool) == isinstance(neutral, bool)
