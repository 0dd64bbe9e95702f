"""What an answer's text must match, in every spelling that bodies use: OpenAI's response_format, vLLM's structured_outputs and guided_*."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal

import msgspec

from mqlab.errors import InvalidRequest
from mqlab.params import StructuredOutputs
from mqlab.server.errors import bad_request

Schema = dict[str, Any]

_STRUCTURED = re.compile(r"\bstructured_outputs(\.\w+)?")


class JsonSchema(msgspec.Struct, frozen=True, kw_only=True):
    """OpenAI's wrapping of a schema; answers always keep to it, whatever ``strict`` says.

    Attributes:
        name: OpenAI demands one; it has no effect, as the description has none on these models, which are not told of the schema.
    """

    name: Annotated[str, msgspec.Meta(max_length=64)] | None = None
    description: str | None = None
    strict: bool | None = None
    schema: Schema


class ResponseFormat(msgspec.Struct, frozen=True, kw_only=True):
    """OpenAI's response_format."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None

    def outputs(self) -> StructuredOutputs | None:
        """What it asks for.

        Raises:
            ApiError: json_schema without a schema.
        """
        if self.type == "text":
            return None
        if self.type == "json_object":
            return StructuredOutputs(json_object=True)
        if self.json_schema is None:
            raise bad_request("response_format.json_schema is missing; type 'json_schema' needs it", "response_format")
        return StructuredOutputs.of_schema(self.json_schema.schema)


class Structured(msgspec.Struct, frozen=True, kw_only=True):
    """vLLM's structured_outputs."""

    json: Schema | str | None = None
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None

    def outputs(self) -> StructuredOutputs:
        """What it asks for.

        Raises:
            InvalidRequest: nothing, or several things.
        """
        return StructuredOutputs(
            json=msgspec.json.encode(self.json).decode() if isinstance(self.json, dict) else self.json,
            regex=self.regex,
            choice=None if self.choice is None else tuple(self.choice),
            grammar=self.grammar,
            json_object=bool(self.json_object),
        )


def only_one(asked: Mapping[str, StructuredOutputs | None]) -> StructuredOutputs | None:
    """What is asked for, by at most one of these fields.

    Raises:
        ApiError: by more.
    """
    given = {name: outputs for name, outputs in asked.items() if outputs is not None}
    if len(given) > 1:
        raise bad_request(f"{' and '.join(given)} exclude each other; send one of them", next(iter(given)))
    return next(iter(given.values()), None)


def respelled(error: InvalidRequest, field: str) -> InvalidRequest:
    """The same refusal of ``structured_outputs`` in the words of the body, where that spells it as another ``field``."""
    return error if field == "structured_outputs" else InvalidRequest(_STRUCTURED.sub(field, str(error), count=1))
