"""What a request wants its text to look like, as a grammar of llguidance; what would take its compiler too far is refused here.

That compiler recurses along chains of rules and references and takes the square of a pattern's length in time and memory. Measured
(llguidance 1.9.1): up to 4 kB of stack a rule, 8 kB a reference, 1 GB for 96 kB of `(a|b)?`; 6 s for 30 numbers that are multiples of 9991,
for which it counts remainders. So these have limits.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Callable, Iterator
from typing import Any

from llguidance import LLMatcher

from mqlab.errors import InvalidRequest
from mqlab.params import StructuredOutputs

MAX_TEXT = 2**18
"""Characters of a JSON schema, of all that a grammar holds, or of all choices together."""
MAX_PATTERN = 2**14
"""Characters of a regular expression, of all patterns of a JSON schema together, or of a grammar without its JSON schemas."""
MAX_REMAINDERS = 50_000
"""All ``multipleOf`` of a JSON schema together, without their decimal points."""

_SCHEMA = re.compile(r"%json\s*(?=\{)")
_WHITESPACE = {"whitespace_flexible": True, "whitespace_pattern": "[ ]?"}
"""Between the tokens of JSON: a space or none. With more allowed, models go on with white space up to their length limit."""


def source(wanted: StructuredOutputs) -> str:
    """The grammar, for LLMatcher.

    Raises:
        InvalidRequest: it is too long, or a JSON schema is no JSON object.
    """
    try:
        return _SOURCES[wanted.kind](getattr(wanted, wanted.kind))
    except InvalidRequest:
        raise
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(f"structured_outputs.{wanted.kind}: {error!s:.300}") from error


def _json(text: str) -> str:
    _check_length("json", len(text), MAX_TEXT)
    schema = json.loads(text)
    if not isinstance(schema, dict):
        raise InvalidRequest(f"structured_outputs.json={text!r:.80} must be a JSON schema that is an object; {{}} allows any value")
    _check_schema("json", schema)
    return LLMatcher.grammar_from_json_schema(schema, overrides=_WHITESPACE)  # pyright: ignore[reportArgumentType]


def _check_schema(what: str, schema: Any) -> None:
    """Refuse a JSON schema, or several, which would take the compiler too long."""
    nodes = list(_nodes(schema))
    _check_length(f"{what}: its patterns", sum(map(_pattern_length, nodes)), MAX_PATTERN)
    if (remainders := sum(map(_remainders, nodes))) > MAX_REMAINDERS:
        limit = f"all together {remainders}; at most {MAX_REMAINDERS} are counted"
        raise InvalidRequest(f"structured_outputs.{what}: its multipleOf come to {limit}: make them smaller")


def _nodes(schema: Any) -> Iterator[dict[str, Any]]:
    """All objects in a schema."""
    rest = [schema]
    while rest:
        node = rest.pop()
        if isinstance(node, dict):
            yield node
            rest.extend(node.values())
        elif isinstance(node, list):
            rest.extend(node)


def _pattern_length(node: dict[str, Any]) -> int:
    own, properties = node.get("pattern"), node.get("patternProperties")
    names = properties if isinstance(properties, dict) else ()
    return sum(map(len, names)) + (len(own) if isinstance(own, str) else 0)


def _remainders(node: dict[str, Any]) -> int:
    value = node.get("multipleOf")
    return int("".join(filter(str.isdigit, str(value)[:20])) or 0) if isinstance(value, int | float) and value > 0 else 0


def _regex(pattern: str) -> str:
    _check_length("regex", len(pattern), MAX_PATTERN)
    return LLMatcher.grammar_from_regex(pattern)


def _choice(texts: tuple[str, ...]) -> str:
    _check_length("choice", sum(map(len, texts)), MAX_TEXT)
    # One terminal: as alternatives of a rule, some thousands exceed the parser's limits.
    return LLMatcher.grammar_from_lark("start: CHOICE\nCHOICE: " + " | ".join(map(json.dumps, texts)))


def _lark(text: str) -> str:
    _check_length("grammar", len(text), MAX_TEXT)
    rules, schemas = _parted(text)
    _check_length("grammar", len(rules), MAX_PATTERN)
    _check_schema("grammar", schemas)
    return LLMatcher.grammar_from_lark(text)


def _parted(text: str) -> tuple[str, list[Any]]:
    """A grammar without the JSON schemas that it holds, and those."""
    decoder, rules, schemas, at = json.JSONDecoder(), "", [], 0
    for found in _SCHEMA.finditer(text):
        if found.end() > at:
            with contextlib.suppress(ValueError):  # no JSON: a word of the grammar that reads like it
                schema, end = decoder.raw_decode(text, found.end())
                schemas.append(schema)
                rules, at = rules + text[at : found.end()], end
    return rules + text[at:], schemas


def _check_length(what: str, length: int, limit: int) -> None:
    if length > limit:
        raise InvalidRequest(f"structured_outputs.{what} of {length} characters; at most {limit} are compiled: make it shorter")


_SOURCES: dict[str, Callable[[Any], str]] = {
    "json": _json,
    "regex": _regex,
    "choice": _choice,
    "grammar": _lark,
    "json_object": lambda _: _json('{"type": "object"}'),
}
