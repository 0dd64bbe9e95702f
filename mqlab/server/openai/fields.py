"""A body of JSON as a struct: null is the same as absent, unknown fields are ignored, wrong types are refused by the field's name."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from contextlib import suppress
from typing import Annotated, Any, TypeVar

import msgspec
from starlette.types import Scope

from mqlab.params import shown
from mqlab.server.errors import ApiError, bad_request

Int = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
T = TypeVar("T")

_FIELDS = msgspec.json.Decoder(dict[str, msgspec.Raw])

_INSTEAD = {
    "functions": "send tools",
    "function_call": "send tool_choice",
    "chat_template": "start it with --chat-template FILE",
}
_PATH = re.compile(r" - at `\$\.((\w+)[^`]*)`")
_MISSING = re.compile(r"required field `((\w+))`")


def check_content_type(scope: Scope) -> None:
    """Refuse a body that says it is something else than JSON, or compressed: a form, most often, which is what curl's -d sends if not told.

    Raises:
        ApiError: 400.
    """
    for name, value in scope["headers"]:
        if name == b"content-type" and not _is_json(value):
            given = value.decode("latin-1")
            raise bad_request(
                f"the body is sent as {given!r:.80}; send JSON, with the header 'content-type: application/json'",
                code="invalid_content_type",
            )
        if name == b"content-encoding" and value.lower() != b"identity":
            given = value.decode("latin-1")
            raise bad_request(f"the body is sent with content-encoding {given!r:.40}; send it as it is", code="invalid_content_encoding")


def read_object(data: bytes, names: Collection[str]) -> dict[str, Any]:
    """The fields of a body that matter, without those that are null.

    Args:
        names: of the fields that matter; what others hold is not read, however much it is.

    Raises:
        ApiError: 400, no JSON object.
    """
    try:
        text = data.decode().removeprefix("\ufeff")  # text, so that what is not read is text at least; Windows' editors put the mark there
        given = _FIELDS.decode(text)
        return {name: value for name, raw in given.items() if name in names and (value := msgspec.json.decode(raw)) is not None}
    except msgspec.ValidationError as error:
        words, _, kind = str(error).rpartition("got ")
        wrong = f"must be a JSON object, not {kind.strip('`')}" if words else f"holds a number that is too large: {kind}"
        raise bad_request(f"the body {wrong}", code="invalid_json") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise bad_request(f"the body is not valid JSON: {error}", code="invalid_json") from None


def check_offered(given: Mapping[str, Any], not_offered: Mapping[str, Any], kind: type) -> None:
    """Refuse fields whose effect is not offered, unless their value asks for nothing.

    Args:
        given: the fields of a body.
        not_offered: known fields without effect, with the value that asks for nothing.
        kind: the struct that the body becomes; fields that it has are its own business.

    Raises:
        ApiError: 400.
    """
    for name, neutral in not_offered.items():
        if name in given and name not in kind.__struct_fields__ and not _same(given[name], neutral):
            remedy = _INSTEAD.get(name, "leave it out")
            raise bad_request(f"{name}={shown(given[name])} is not offered by this server; {remedy}", name, "unsupported_parameter")


def convert(given: Mapping[str, Any], kind: type[T]) -> T:
    """Fields as a struct. A number without a fraction is an integer, however it is written (5.0): so says JSON Schema.

    Raises:
        ApiError: 400, with the field that is to blame.
    """
    try:
        return msgspec.convert(given, kind)
    except msgspec.ValidationError as error:
        if "got `float`" in str(error):
            with suppress(msgspec.ValidationError):
                return msgspec.convert(_whole_numbers(given), kind)
        raise _refused(error) from None


def one_or_several(given: Any, name: str) -> list[Any]:
    """A field that holds a text, token ids, or a list of either: its texts or lists of ids.

    Raises:
        ApiError: 400, an empty list, or one of several kinds.
    """
    if isinstance(given, str):
        return [given]
    kinds = {type(item) for item in given}
    if kinds == {int}:
        return [given]
    if kinds in ({str}, {list}):
        return list(given)
    what = "an empty list" if not given else "a mixed list"
    raise bad_request(f"{name} is {what}; it must be text, a list of texts, token ids, or a list of lists of token ids", name)


def _is_json(content_type: bytes) -> bool:
    kind = content_type.partition(b";")[0].strip().lower()
    return not kind or kind == b"application/json" or (kind.startswith(b"application/") and kind.endswith(b"+json"))


def _whole_numbers(value: Any) -> Any:
    match value:
        case float():
            return int(value) if value.is_integer() else value
        case list():
            return [_whole_numbers(one) for one in value]
        case dict():
            return {name: _whole_numbers(one) for name, one in value.items()}
    return value


def _refused(error: msgspec.ValidationError) -> ApiError:
    found = _PATH.search(str(error)) or _MISSING.search(str(error))
    text = str(error).partition(" - at ")[0]
    if found is None:
        return bad_request(text)
    place, param = found.groups()
    return bad_request(text if f"`{place}`" in text else f"{place}: {text}", param)


def _same(value: Any, neutral: Any) -> bool:
    """Equal, and both or neither of them a bool: 0 asks for something where False does not."""
    return value == neutral and isinstance(value, bool) == isinstance(neutral, bool)
