"""The grammar of an answer that calls tools: written in the model's own way, and held to the schemas of their arguments.

In the Lark syntax of llguidance, whose lazy terminals end words where a call begins.
Source: https://github.com/guidance-ai/llguidance/blob/main/docs/syntax.md, "tool calling".
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from mqlab.server.errors import bad_request
from mqlab.text.toolcalls import CallFormat

Schema = dict[str, Any]

_WHITE_SPACE = {"whitespace_flexible": True, "whitespace_pattern": "[ ]?"}
"""Between the tokens of JSON: a space or none."""


@dataclass(frozen=True)
class CallGrammar:
    """The grammars of calls in one format.

    Args:
        form: how calls are written.
        parameters: JSON schemas of the functions' arguments by their names.
        many: whether several calls may follow one another.
        special: the tokenizer's special tokens, as which marks may have to be written.
    """

    form: CallFormat
    parameters: Mapping[str, Schema]
    many: bool
    special: Collection[str]

    def forced(self) -> str:
        """Calls and nothing else."""
        return f"start: calls\n{self._calls()}"

    def or_json(self, answer: Schema) -> str:
        """Calls, or an answer that matches a JSON schema."""
        return f"start: calls | answer\nanswer: {_json(answer)}\n{self._calls()}"

    def or_words(self) -> str:
        """Words, and calls among them or behind them: what begins as a call goes on as one."""
        opens = self._mark(self.form.opens)
        lead = f"lead: WORDS {opens}" if self.form.opens in self.special else f"lead[lazy]: WORDS {opens}"
        if self.form.bare:
            words = r"WORDS: /([^{\s](.|\n)*)?/"
            return f"start: calls | WORDS | lead calls\n{words}\n{lead}\n{self._calls()}"
        body, again = self._body(), "*" if self.many else "?"
        words = r"WORDS: /(.|\n)*/"
        return f"start: (lead body){again} WORDS\n{words}\n{lead}\nbody: {body}\n"

    def _calls(self) -> str:
        if self.form.bare:
            again, call = ' (";" " "? call)*', _json(self._schema())
        else:
            again, call = r' ("\n"? call)*', f"{self._mark(self.form.opens)} {self._body()}"
        return f"calls: call{again if self.many else ''}\ncall: {call}\n"

    def _body(self) -> str:
        """Of a call between marks."""
        return rf'"\n"? {_json(self._schema())} "\n"? {self._mark(self.form.closes)}'

    def _mark(self, mark: str) -> str:
        return mark if mark in self.special else json.dumps(mark)

    def _schema(self) -> Schema:
        """Of one call."""
        key = self.form.key
        calls = [_call(name, key, f"#/$defs/{number}") for number, name in enumerate(self.parameters)]
        try:
            places = {str(number): _moved(one, f"#/$defs/{number}") for number, one in enumerate(self.parameters.values())}
        except RecursionError:
            raise bad_request("tools: the schema of a function's parameters is nested too deep; make it flatter", "tools") from None
        return {"anyOf": calls, "$defs": places}


def _json(schema: Schema) -> str:
    return f"%json {json.dumps({**schema, 'x-guidance': _WHITE_SPACE})}"


def _call(name: str, key: str, place: str) -> Schema:
    properties = {"name": {"const": name}, key: {"type": "object", "$ref": place}}
    return {"type": "object", "properties": properties, "required": ["name", key], "additionalProperties": False}


def _moved(value: Any, place: str) -> Any:
    """A schema that stands at ``place`` in a larger one: what it says of places in itself is said of those."""
    if isinstance(value, list):
        return [_moved(item, place) for item in value]
    if not isinstance(value, dict):
        return value
    moved = {key: _moved(item, place) for key, item in value.items() if key != "$schema"}
    ref = moved.get("$ref")
    if isinstance(ref, str) and (ref == "#" or ref.startswith("#/")):
        moved["$ref"] = place + ref[1:]
    return moved
