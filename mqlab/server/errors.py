"""What went wrong, as OpenAI's clients expect to hear it: an envelope with message, type, param and code, and a status."""

from __future__ import annotations

import logging
import re
from collections.abc import Collection, Mapping

import msgspec

from mqlab.errors import ClientClosedError, EngineDeadError, InvalidRequest, ModelUnavailable, MqlabError, Overloaded, RequestFailed

_LOG = logging.getLogger(__name__)
_LONGEST_MESSAGE = 1000
RETRY = {"retry-after": "1"}
"""Seconds after which whoever was refused because there were too many may try again."""
_SUBJECT = re.compile(r"(?:the )?([a-z_]+)(?=[ =\[.:])")


class ApiError(Exception):
    """A refusal with its HTTP status.

    Attributes:
        kind: OpenAI's ``type``: invalid_request_error, server_error, …
        param: the field of the body that is to blame, where one is.
        headers: of the response, beside the usual ones.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        kind: str = "invalid_request_error",
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.kind = kind
        self.param = param
        self.code = code
        self.headers = dict(headers or {})

    def body(self) -> bytes:
        """The envelope as JSON."""
        message = self.message if len(self.message) <= _LONGEST_MESSAGE else self.message[:_LONGEST_MESSAGE] + "…"
        return msgspec.json.encode({"error": {"message": message, "type": self.kind, "param": self.param, "code": self.code}})


def bad_request(message: str, param: str | None = None, code: str | None = None) -> ApiError:
    """HTTP 400."""
    return ApiError(400, message, param=param, code=code)


def unavailable(message: str, code: str, *, retry: bool = False) -> ApiError:
    """HTTP 503: no request can be served, or none more; perhaps with a hint when to try again."""
    return ApiError(503, message, kind="service_unavailable_error", code=code, headers=RETRY if retry else None)


def as_api_error(error: Exception, fields: Collection[str] = ()) -> ApiError:
    """The refusal for an exception; the text of one that nobody foresaw stays in the log.

    Args:
        fields: names of the body's fields, one of which may be to blame.
    """
    match error:
        case ApiError():
            return error
        case InvalidRequest():
            return bad_request(str(error), _blamed(str(error), fields))
        case RequestFailed():
            return ApiError(500, str(error), kind="server_error", code="request_failed")
        case ModelUnavailable():
            return unavailable(str(error), "model_unavailable")
        case Overloaded():
            return unavailable(str(error), "overloaded", retry=True)
        case EngineDeadError():
            return unavailable(error.cause, "engine_dead")
        case ClientClosedError():
            return unavailable("the server is shutting down", "shutting_down")
        case MqlabError():
            return ApiError(500, str(error), kind="server_error")
    _LOG.error("a request failed", exc_info=error)
    return ApiError(500, "internal error; the server's log has the details", kind="server_error", code="internal_error")


def _blamed(message: str, fields: Collection[str]) -> str | None:
    """mqlab's messages begin with the field that they are about; a chat's prompt is its messages."""
    subject = _SUBJECT.match(message)
    name = subject[1] if subject else ""
    if "messages" in fields and (name == "prompt" or "messages" in message):
        return "messages"
    return name if name in fields else None
