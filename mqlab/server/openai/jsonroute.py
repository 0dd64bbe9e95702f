"""A route that takes a body of JSON, if any, and answers with JSON: what all but the generating routes are."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Generic, TypeVar

import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.types import Receive, Scope, Send

from mqlab.server.errors import as_api_error
from mqlab.server.http.connection import read_body, while_connected
from mqlab.server.openai.fields import check_content_type, check_offered, convert, read_object
from mqlab.server.openai.stream import refuse, respond

T = TypeVar("T")


class JsonRoute(Generic[T]):
    """An ASGI endpoint. Its work is cancelled when the client leaves.

    Args:
        kind: the struct that the body becomes; no body at all is an empty one, which is refused where a field is required.
        work: makes the answer of a body and of the request's query.
        not_offered: known fields without effect, with the value that asks for nothing.
    """

    def __init__(self, kind: type[T], work: Callable[[T, Request], Awaitable[Any]], not_offered: dict[str, Any] | None = None) -> None:
        self._kind = kind
        self._work = work
        self._not_offered = not_offered or {}
        self._names = frozenset((*getattr(kind, "__struct_fields__", ()), *self._not_offered))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI."""
        try:
            check_content_type(scope)
            body = self._decode(await read_body(receive))
            answer = await while_connected(receive, self._answer(body, Request(scope)))
            await respond(send, 200, msgspec.json.encode(answer))
        except ClientDisconnect:
            pass
        except Exception as error:
            await refuse(send, as_api_error(error, getattr(self._kind, "__struct_fields__", ())))

    async def _answer(self, body: T, request: Request) -> Any:
        return await self._work(body, request)

    def _decode(self, data: bytes) -> T:
        given = read_object(data, self._names) if data.strip() else {}
        check_offered(given, self._not_offered, self._kind)
        return convert(given, self._kind)
