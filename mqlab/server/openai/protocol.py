"""The bodies of the OpenAI routes, checked: null is the same as absent, unknown fields are ignored, wrong types are refused.

Fields beyond OpenAI's carry vLLM's names: top_k, min_p, repetition_penalty, min_tokens, ignore_eos, stop_token_ids,
include_stop_str_in_output, skip_special_tokens, bad_words, allowed_token_ids, prompt_logprobs, structured_outputs, guided_*, priority,
cache_salt. A known field whose effect is not offered is refused unless its value asks for nothing.
"""

from __future__ import annotations

import re
from functools import cache
from typing import Annotated, Any, TypeVar

import msgspec

from mqlab.errors import InvalidRequest
from mqlab.params import StructuredOutputs, shown
from mqlab.server.errors import bad_request
from mqlab.server.openai.fields import Int, check_offered, convert, read_object
from mqlab.server.openai.shapes import ResponseFormat, Schema, Structured, only_one, respelled
from mqlab.server.openai.tools import ToolChoice, Tools
from mqlab.types import SamplingParams

B = TypeVar("B", bound="Generation")

_NOT_OFFERED: dict[str, Any] = {
    "top_logprobs": 0,
    "echo": False,
    "suffix": "",
    "use_beam_search": False,
    "tools": [],
    "functions": [],
    "function_call": "none",
    "tool_choice": "none",
    "modalities": ["text"],
    "audio": None,
    "store": False,
    "web_search_options": None,
    "verbosity": "medium",
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

_GUIDES = ("json", "regex", "choice", "grammar")

MAX_CHOICES = 2048
"""Choices of one request, over all its prompts: each is a stream of the engine's. As many as OpenAI allows prompts."""

MAX_TOP_LOGPROBS = 20
"""OpenAI's limit in chats."""

# What SamplingParams checks, in words of its own: told to readers of the OpenAPI document only.
Share = Annotated[float, msgspec.Meta(extra_json_schema={"minimum": 0, "maximum": 1})]
TopP = Annotated[float, msgspec.Meta(extra_json_schema={"exclusiveMinimum": 0, "maximum": 1})]
Temperature = Annotated[float, msgspec.Meta(extra_json_schema={"minimum": 0, "maximum": 2})]
Penalty = Annotated[float, msgspec.Meta(extra_json_schema={"minimum": -2, "maximum": 2})]
Repetition = Annotated[float, msgspec.Meta(extra_json_schema={"exclusiveMinimum": 0})]
Bias = Annotated[float, msgspec.Meta(extra_json_schema={"minimum": -100, "maximum": 100})]
Text = Annotated[str, msgspec.Meta(extra_json_schema={"minLength": 1})]
Choices = Annotated[int, msgspec.Meta(extra_json_schema={"minimum": 1, "maximum": MAX_CHOICES})]
Length = Annotated[int, msgspec.Meta(extra_json_schema={"minimum": 0, "exclusiveMaximum": 2**31})]
Likeliest = Annotated[int, msgspec.Meta(extra_json_schema={"minimum": -1, "exclusiveMaximum": 2**31})]
TokenId = Annotated[int, msgspec.Meta(extra_json_schema={"minimum": 0, "exclusiveMaximum": 2**31})]

_NUMBER = re.compile(r"-?(0|[1-9][0-9]{0,17})")


class StreamOptions(msgspec.Struct, frozen=True):
    """How to stream."""

    include_usage: bool | None = None


class Generation(msgspec.Struct, frozen=True, kw_only=True):
    """What both routes share; defaults are OpenAI's."""

    model: str | None = None
    n: Choices = 1
    temperature: Temperature = 1.0
    top_p: TopP = 1.0
    top_k: Likeliest = 0
    seed: Int | None = None
    max_tokens: Length | None = None
    min_tokens: Length = 0
    min_p: Share = 0.0
    presence_penalty: Penalty = 0.0
    frequency_penalty: Penalty = 0.0
    repetition_penalty: Repetition = 1.0
    logit_bias: dict[str, Bias] = {}
    bad_words: list[Text] = []
    allowed_token_ids: list[TokenId] | None = None
    stop: Text | list[Text] = []
    stop_token_ids: list[TokenId] = []
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    skip_special_tokens: bool = True
    prompt_logprobs: Likeliest | None = None
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

    @property
    def constraint(self) -> str:
        """The field that says what the text must match."""
        if self.response_format is not None and self.response_format.type != "text":
            return "response_format"
        return next((f"guided_{name}" for name in _GUIDES if getattr(self, f"guided_{name}") is not None), "structured_outputs")

    def _structured(self) -> StructuredOutputs | None:
        names = [name for name in _GUIDES if getattr(self, f"guided_{name}") is not None]
        whole = {"response_format": self.response_format, "structured_outputs": self.structured_outputs}
        try:
            guided = {f"guided_{name}": Structured(**{name: getattr(self, f"guided_{name}")}).outputs() for name in names}
            return only_one(guided | {name: None if asked is None else asked.outputs() for name, asked in whole.items()})
        except InvalidRequest as error:
            raise respelled(error, self.constraint) from error


class CompletionBody(Generation, frozen=True, kw_only=True):
    """POST /v1/completions: text, several texts, token ids or several lists of them; 16 new tokens unless told otherwise."""

    prompt: str | list[str | TokenId | list[TokenId]]
    max_tokens: Length | None = 16
    logprobs: Likeliest | None = None
    echo: bool = False
    best_of: Int | None = None

    @property
    def scores(self) -> int | None:
        """See Generation.scores."""
        return self.logprobs

    @property
    def echoes(self) -> bool:
        """See Generation.echoes."""
        return self.echo

    def params(self) -> SamplingParams:
        """See Generation.params; ``best_of`` asks for nothing where it is ``n``."""
        if self.best_of not in (None, self.n):
            raise bad_request(
                f"best_of={self.best_of} is not offered by this server; leave it out, ask for that many with n and choose", "best_of"
            )
        return super().params()


class ChatBody(Generation, frozen=True, kw_only=True):
    """POST /v1/chat/completions; answers up to the context limit unless told otherwise."""

    messages: Annotated[list[dict[str, Any]], msgspec.Meta(min_length=1)]
    tools: Tools = []
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool = True
    reasoning_effort: str | None = None
    documents: list[dict[str, Any]] = []
    add_generation_prompt: bool | None = None
    continue_final_message: bool = False
    chat_template_kwargs: dict[str, Any] = {}
    max_completion_tokens: Length | None = None
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
        if self.max_completion_tokens is not None and not 0 <= self.max_completion_tokens < 2**31:
            limit = f"max_completion_tokens={shown(self.max_completion_tokens)} must be at least 0 and below 2**31"
            raise bad_request(limit, "max_completion_tokens")
        return super().params()


def decode(data: bytes, kind: type[B]) -> B:
    """The body of a request.

    Raises:
        ApiError: 400, with the field that is to blame.
    """
    given = read_object(data, _names(kind))
    check_offered(given, _NOT_OFFERED, kind)
    body = convert(given, kind)
    if body.stream_options is not None and not body.stream:
        raise bad_request("stream_options is only allowed with stream=true", "stream_options")
    if body.prompt_logprobs is not None and body.stream:
        raise bad_request("prompt_logprobs is not available with stream=true; leave one of the two out", "prompt_logprobs")
    return body


@cache
def _names(kind: type[Generation]) -> frozenset[str]:
    """Of the fields that a body of this kind may have, with or without an effect."""
    return frozenset((*kind.__struct_fields__, *_NOT_OFFERED))


def _token_id(key: str) -> int:
    """JSON has no other keys than strings; each number has one spelling, so that no key stands for another."""
    if not _NUMBER.fullmatch(key):
        raise bad_request(f"logit_bias has the key {key!r:.80}; keys are token ids", "logit_bias")
    return int(key)
