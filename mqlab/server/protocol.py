"""The bodies of the OpenAI routes, checked: null is the same as absent, unknown fields are ignored, wrong types are refused.

Fields beyond OpenAI's carry vLLM's names: top_k, min_tokens, ignore_eos, stop_token_ids, include_stop_str_in_output,
skip_special_tokens. A known field whose effect is not offered is refused unless its value asks for nothing.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, TypeVar

import msgspec

from mqlab.server.errors import ApiError, bad_request
from mqlab.types import SamplingParams

Int = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
B = TypeVar("B", bound="Generation")

_NOT_OFFERED: dict[str, Any] = {
    "logprobs": False,
    "top_logprobs": 0,
    "prompt_logprobs": None,
    "echo": False,
    "best_of": 1,
    "suffix": "",
    "logit_bias": {},
    "presence_penalty": 0,
    "frequency_penalty": 0,
    "repetition_penalty": 1,
    "min_p": 0,
    "bad_words": [],
    "use_beam_search": False,
    "response_format": {"type": "text"},
    "structured_outputs": None,
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
    "guided_json": None,
    "guided_regex": None,
    "guided_choice": None,
    "guided_grammar": None,
    "allowed_token_ids": [],
    "length_penalty": 1,
    "truncate_prompt_tokens": None,
    "return_token_ids": False,
    "prompt_embeds": None,
}
"""Known fields without effect here, with the value that asks for nothing."""

_PATH = re.compile(r" - at `\$\.(\w+)|required field `(\w+)`")


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
    stop: str | list[str] = []
    stop_token_ids: list[Int] = []
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    skip_special_tokens: bool = True
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

    def params(self) -> SamplingParams:
        """The sampling parameters.

        Raises:
            InvalidRequest: one is out of its range.
        """
        return SamplingParams(
            n=self.n,
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=self.top_k,
            seed=self.seed,
            max_tokens=self.limit,
            min_tokens=self.min_tokens,
            stop=(self.stop,) if isinstance(self.stop, str) else tuple(self.stop),
            stop_token_ids=tuple(self.stop_token_ids),
            include_stop_str_in_output=self.include_stop_str_in_output,
            ignore_eos=self.ignore_eos,
            skip_special_tokens=self.skip_special_tokens,
        )


class CompletionBody(Generation, frozen=True, kw_only=True):
    """POST /v1/completions: text, several texts, token ids or several lists of them; 16 new tokens unless told otherwise."""

    prompt: str | list[str | Int | list[Int]]
    max_tokens: Int | None = 16


class ChatBody(Generation, frozen=True, kw_only=True):
    """POST /v1/chat/completions; answers up to the context limit unless told otherwise."""

    messages: Annotated[list[dict[str, Any]], msgspec.Meta(min_length=1)]
    max_completion_tokens: Int | None = None

    @property
    def limit(self) -> int | None:
        """``max_completion_tokens``, or the older ``max_tokens``."""
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens


def decode(data: bytes, kind: type[B]) -> B:
    """The body of a request.

    Raises:
        ApiError: 400, with the field that is to blame.
    """
    given = {name: value for name, value in _object(data).items() if value is not None}
    for name, neutral in _NOT_OFFERED.items():
        if name in given and not _same(given[name], neutral):
            raise bad_request(f"{name}={given[name]!r:.200} is not offered by this server; leave it out", name, "unsupported_parameter")
    try:
        body = msgspec.convert(given, kind)
    except msgspec.ValidationError as error:
        raise _refused(error) from None
    if body.stream_options is not None and not body.stream:
        raise bad_request("stream_options is only allowed with stream=true", "stream_options")
    return body


def _object(data: bytes) -> dict[str, Any]:
    try:
        given = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise bad_request(f"the body is not valid JSON: {error}", code="invalid_json") from None
    if not isinstance(given, dict):
        raise bad_request(f"the body must be a JSON object, not {type(given).__name__}", code="invalid_json")
    return given


def _refused(error: msgspec.ValidationError) -> ApiError:
    found = _PATH.search(str(error))
    param = (found[1] or found[2]) if found else None
    text = str(error).partition(" - at ")[0]
    return bad_request(f"{param}: {text}" if param and "required" not in text else text, param)


def _same(value: Any, neutral: Any) -> bool:
    """Equal, and both or neither of them a bool: 0 asks for something where False does not."""
    return value == neutral and isinstance(value, bool) == isinstance(neutral, bool)
