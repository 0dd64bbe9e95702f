"""OpenAI's tools in a chat: which there are, whether one must be called, and what that means for the model's answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import msgspec

from mqlab.config import ToolParser
from mqlab.errors import InvalidRequest
from mqlab.front.textmodel import TextModel
from mqlab.params import StructuredOutputs
from mqlab.server.errors import ApiError, bad_request
from mqlab.server.openai.toolgrammar import CallGrammar
from mqlab.text.toolcalls import FORMATS, CallFormat
from mqlab.types import SamplingParams

MAX_TOOLS = 128
"""Source: OpenAI's API reference."""


def _no_arguments() -> dict[str, Any]:
    return {"type": "object", "properties": {}, "additionalProperties": False}


class Function(msgspec.Struct, frozen=True, kw_only=True):
    """What can be called.

    Attributes:
        parameters: JSON schema of its arguments; absent for none.
        strict: whether every call must match it; one that is forced does in any case.
    """

    name: Annotated[str, msgspec.Meta(min_length=1, max_length=64)]
    description: str | None = None
    parameters: dict[str, Any] = msgspec.field(default_factory=_no_arguments)
    strict: bool | None = None

    def shape(self, free: bool) -> dict[str, Any]:
        """What its arguments must match: where it is ``free`` to be called or not, only if it is strict."""
        return self.parameters if self.strict or not free else {"type": "object"}


class Tool(msgspec.Struct, frozen=True, kw_only=True):
    """A tool; functions are the only kind."""

    type: Literal["function"]
    function: Function

    @property
    def name(self) -> str:
        """Its function's name."""
        return self.function.name

    def described(self) -> dict[str, Any]:
        """It as chat templates print it."""
        named = {"name": self.name, "description": self.function.description, "parameters": self.function.parameters}
        return {"type": "function", "function": {key: value for key, value in named.items() if value is not None}}


class Named(msgspec.Struct, frozen=True, kw_only=True):
    """The name of a function."""

    name: str


class NamedTool(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="function"):
    """The tool that must be called."""

    function: Named


class AllowedTool(msgspec.Struct, frozen=True, kw_only=True):
    """One of those that may be called."""

    type: Literal["function"]
    function: Named


class Allowed(msgspec.Struct, frozen=True, kw_only=True):
    """Those that may be called, and whether one must be."""

    mode: Literal["auto", "required"]
    tools: Annotated[list[AllowedTool], msgspec.Meta(min_length=1)]


class AllowedTools(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="allowed_tools"):
    """Only some of the tools: the model is told of no others."""

    allowed_tools: Allowed


ToolChoice = Literal["none", "auto", "required"] | NamedTool | AllowedTools
Tools = Annotated[list[Tool], msgspec.Meta(max_length=MAX_TOOLS)]


@dataclass(frozen=True, slots=True)
class ToolUse:
    """What tools mean for one answer.

    Attributes:
        tools: that the model is told of.
        form: how the answer writes calls.
        most: calls that it may hold; None for any number.
        outputs: what its text must match; None for nothing.
        hidden: names of special tokens to leave out of its words, which show them for the sake of the marks; None where nothing is shown.
    """

    tools: Sequence[Tool]
    form: CallFormat
    most: int | None
    outputs: StructuredOutputs | None
    hidden: frozenset[str] | None

    def params(self, params: SamplingParams) -> SamplingParams:
        """Sampling parameters for an answer with calls."""
        skips = params.skip_special_tokens and self.hidden is None
        return msgspec.structs.replace(params, skip_special_tokens=skips, structured_outputs=self.outputs)


def tool_use(
    tools: Sequence[Tool],
    choice: ToolChoice | None,
    parallel: bool,
    text: TextModel,
    parser: ToolParser,
    params: SamplingParams,
) -> ToolUse | None:
    """What a body's tools mean for the answer of a model; None where it calls none.

    Calls are written in the model's own way. A grammar holds them to their schemas where one is forced, where a tool is strict, and where
    an answer that calls none must be JSON. Elsewhere they are as the model writes them. A model that was not trained to call tools does not
    know when to end either: it is forced to make one call, not several.

    Args:
        params: what the body asks for otherwise.

    Raises:
        ApiError: contradictory, or this model's way to write calls is not known. InvalidRequest: no chat template.
    """
    if not tools and choice not in (None, "none", "auto"):
        raise bad_request("tool_choice is only allowed with tools; send some, or leave it out", "tool_choice")
    if not tools or choice == "none":
        return None
    _check_names(tools)
    if isinstance(choice, AllowedTools):
        names = {_chosen(tools, one.function.name).name for one in choice.allowed_tools.tools}
        tools, choice = [tool for tool in tools if tool.name in names], choice.allowed_tools.mode
    form = _form(text, parser)
    wanted = [_chosen(tools, choice.function.name)] if isinstance(choice, NamedTool) else tools
    free = choice in (None, "auto")
    many = parallel and not isinstance(choice, NamedTool) and (free or text.chat.traits(with_tools=True).knows_tools)
    shapes = {tool.name: tool.function.shape(free) for tool in wanted}
    grammar = CallGrammar(form, shapes, many, text.special_names)
    outputs = _outputs(grammar, free, any(tool.function.strict for tool in wanted), params.structured_outputs)
    return ToolUse(tools, form, None if many else 1, outputs, _hidden(form, text) if params.skip_special_tokens else None)


def _outputs(grammar: CallGrammar, free: bool, strict: bool, answer: StructuredOutputs | None) -> StructuredOutputs | None:
    """What the text must match; what an answer without calls must match does not matter where one is forced."""
    if not free:
        return StructuredOutputs(grammar=grammar.forced())
    if answer is not None:
        return StructuredOutputs(grammar=grammar.or_json(_json_schema(answer)))
    return StructuredOutputs(grammar=grammar.or_words()) if strict else None


def _json_schema(answer: StructuredOutputs) -> dict[str, Any]:
    """Of an answer that must be JSON."""
    if answer.json_object:
        return {"type": "object"}
    try:
        schema = msgspec.json.decode(answer.json or "")
    except (msgspec.DecodeError, RecursionError):
        schema = None
    if not isinstance(schema, dict):
        raise InvalidRequest(f"structured_outputs.{answer.kind} leaves the model no way to call its tools; leave one of them out")
    return schema


def _check_names(tools: Sequence[Tool]) -> None:
    names = [tool.name for tool in tools]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise bad_request(f"tools has several functions named {twice!r}; give each a name of its own", "tools")


def _form(text: TextModel, parser: ToolParser) -> CallFormat:
    if parser == "none":
        raise _not_offered("tools are turned off here by --tool-call-parser none; leave them out")
    form = FORMATS.get(parser) or text.chat.traits(with_tools=True).call_format
    if form is None:
        known = " or ".join(FORMATS)
        raise _not_offered(f"this model's chat template writes calls in a way that is not known; serve it with --tool-call-parser {known}")
    return form


def _not_offered(message: str) -> ApiError:
    return bad_request(message, "tools", "unsupported_parameter")


def _chosen(tools: Sequence[Tool], name: str) -> Tool:
    found = next((tool for tool in tools if tool.name == name), None)
    if found is None:
        raise bad_request(f"tool_choice names {name!r}, which is not among tools", "tool_choice")
    return found


def _hidden(form: CallFormat, text: TextModel) -> frozenset[str] | None:
    """None where the marks are no special tokens, and so are seen anyway."""
    names = text.special_names
    return names - {form.opens} if {form.opens, form.closes} & names else None
