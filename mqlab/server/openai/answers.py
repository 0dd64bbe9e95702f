"""What the generating routes answer, for the OpenAPI document. The JSON itself is made in parts, by answer.Piece and stream.Chunks."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

FinishReason = Literal["stop", "length", "tool_calls", "abort", "error"]
Count = Annotated[int, msgspec.Meta(ge=0)]


class ErrorDetail(msgspec.Struct, frozen=True, kw_only=True):
    """What went wrong.

    Attributes:
        type: invalid_request_error, server_error, …
        param: the field of the body that is to blame, where one is.
        code: for programs to tell reasons apart.
    """

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """OpenAI's envelope of a refusal or a failure."""

    error: ErrorDetail


class UsageAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens of one request, over all its choices."""

    prompt_tokens: Count
    completion_tokens: Count
    total_tokens: Count
    prompt_tokens_details: dict[str, Any] | None = None


class CompletionLogprobs(msgspec.Struct, frozen=True, kw_only=True):
    """One entry for each token of a choice; the first token of an echoed prompt has no logprob."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float | None] | None]
    text_offset: list[Count]


class CompletionChoice(msgspec.Struct, frozen=True, kw_only=True):
    """One completion. ``stop_reason`` (vLLM's) is the stop string or token that ended it."""

    index: Count
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: FinishReason | None
    stop_reason: str | int | None = None
    prompt_logprobs: list[dict[str, Any] | None] | None = None


class CompletionAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """What POST /v1/completions answers: prompt by prompt, each with its ``n`` choices."""

    id: str
    object: Literal["text_completion"]
    created: Count
    model: str
    system_fingerprint: str
    choices: list[CompletionChoice]
    usage: UsageAnswer


class CompletionChunk(msgspec.Struct, frozen=True, kw_only=True):
    """An event of a streamed completion: one choice, or none and the usage of all in the last one, where that was asked for."""

    id: str
    object: Literal["text_completion"]
    created: Count
    model: str
    choices: list[CompletionChoice]
    usage: UsageAnswer | None = None


class TopLogprob(msgspec.Struct, frozen=True, kw_only=True):
    """A token with the natural logarithm of its probability."""

    token: str
    logprob: float | None
    bytes: list[Count] | None


class TokenLogprobAnswer(TopLogprob, frozen=True, kw_only=True):
    """One token of a message, with the likeliest in its place."""

    top_logprobs: list[TopLogprob]


class ChatLogprobs(msgspec.Struct, frozen=True, kw_only=True):
    """One entry for each token of a message."""

    content: list[TokenLogprobAnswer] | None
    refusal: list[TokenLogprobAnswer] | None = None


class FunctionAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """A function to be called, with its arguments as JSON text; in a stream, what these gained."""

    name: str | None = None
    arguments: str | None = None


class ToolCallAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """A call that the model asks for."""

    index: Count | None = None
    id: str | None = None
    type: Literal["function"] | None = None
    function: FunctionAnswer


class MessageAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """A message of the assistant."""

    role: Literal["assistant"]
    content: str | None
    refusal: str | None = None
    tool_calls: list[ToolCallAnswer] | None = None


class DeltaAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """What a message gained; its role comes first, alone."""

    role: Literal["assistant"] | None = None
    content: str | None = None
    tool_calls: list[ToolCallAnswer] | None = None


class ChatChoice(msgspec.Struct, frozen=True, kw_only=True):
    """One answer to a conversation. ``stop_reason`` (vLLM's) is the stop string or token that ended it."""

    index: Count
    message: MessageAnswer
    logprobs: ChatLogprobs | None
    finish_reason: FinishReason | None
    stop_reason: str | int | None = None


class ChatAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """What POST /v1/chat/completions answers."""

    id: str
    object: Literal["chat.completion"]
    created: Count
    model: str
    system_fingerprint: str
    choices: list[ChatChoice]
    usage: UsageAnswer
    prompt_logprobs: list[dict[str, Any] | None] | None = None


class ChatDelta(msgspec.Struct, frozen=True, kw_only=True):
    """What a choice gained."""

    index: Count
    delta: DeltaAnswer
    logprobs: ChatLogprobs | None
    finish_reason: FinishReason | None
    stop_reason: str | int | None = None


class ChatChunk(msgspec.Struct, frozen=True, kw_only=True):
    """An event of a streamed chat: one choice, or none and the usage of all in the last one, where that was asked for."""

    id: str
    object: Literal["chat.completion.chunk"]
    created: Count
    model: str
    choices: list[ChatDelta]
    usage: UsageAnswer | None = None
