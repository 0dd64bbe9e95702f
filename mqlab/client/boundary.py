"""What crosses between the user of a client and an engine: checked on the way in, failures as exceptions on the way out."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from mqlab.errors import CallError, InvalidRequest, ModelUnavailable, Overloaded, RequestError, RequestFailed
from mqlab.types import Failure, Request
from mqlab.wire.codecs import as_plain

_RAISED: dict[Literal["invalid", "failed", "unavailable", "overloaded"], type[RequestError]] = {
    "invalid": InvalidRequest,
    "failed": RequestFailed,
    "unavailable": ModelUnavailable,
    "overloaded": Overloaded,
}
_REQUEST = msgspec.msgpack.Decoder(Request)


def checked(request: Request) -> Request:
    """The request with every field of its type, and a copy of its own: a wrong one must fail here, not in the engine's decoder.

    Raises:
        InvalidRequest: it is malformed.
    """
    try:
        return _REQUEST.decode(msgspec.msgpack.encode(request))
    except (msgspec.ValidationError, TypeError, ValueError, OverflowError) as error:
        raise InvalidRequest(f"request {request.id!r} is malformed: {error}") from error


def plain_arguments(method: str, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """The arguments of a call as what every codec can carry.

    Raises:
        CallError: one cannot be sent.
    """
    try:
        return tuple(as_plain(args))
    except ValueError as error:
        raise CallError(f"{method}: an argument cannot be sent: {error}; pass numbers, strings, lists and dicts") from error


def as_exception(failure: Failure) -> RequestError:
    """The failure of one request, to be raised."""
    return _RAISED[failure.kind](failure.message)


def as_failure(error: Exception) -> Failure:
    """The inverse, for whoever carries it to another process; what was not foreseen failed."""
    for kind, raised in _RAISED.items():
        if isinstance(error, raised):
            return Failure(kind, str(error))
    return Failure("failed", f"{type(error).__name__}: {error}")
