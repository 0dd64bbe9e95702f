"""Where the bytes of a stream go: to a connection, as the server of this package has it, or through any other's ``send``."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable

from starlette.types import Receive, Scope, Send

KEY = "mqlab.line"
"""The extension of ASGI's scope that is a request's DirectLine. Middleware that changes bodies must take it out: it does not see them."""

Headers = Iterable[tuple[bytes, bytes]]


class Line(ABC):
    """The way to the reader of one response. All methods on the event loop's thread.

    Attributes:
        send: of ASGI, for responses that are no streams.
        started: the response of a stream has begun.
        ready: what is written now leaves at once; else write only between ``room`` and ``flush``.
    """

    started = False
    ready = False

    def __init__(self, send: Send) -> None:
        self.send = send

    @abstractmethod
    def watch(self, gone: Callable[[], None]) -> None:
        """Call ``gone`` once the reader has left, until ``unwatch``.

        Raises:
            ClientDisconnect: it has left already.
        """

    @abstractmethod
    async def unwatch(self) -> None:
        """Watch no more."""

    async def start(self, headers: Headers) -> None:
        """Begin the response of a stream."""
        self.started = True
        await self.send({"type": "http.response.start", "status": 200, "headers": list(headers)})

    @abstractmethod
    def write(self, data: bytes) -> None:
        """Add to the body. Never waits."""

    @abstractmethod
    async def room(self) -> None:
        """Wait until the reader has taken enough for more to be written."""

    @abstractmethod
    async def flush(self) -> None:
        """All that was held back is written: send it, and become ``ready`` where there is room."""

    @abstractmethod
    async def end(self, last: bytes) -> None:
        """End the response with these bytes."""


class AsgiLine(Line):
    """Through ``send`` and ``receive``: one message for all that was written."""

    def __init__(self, receive: Receive, send: Send) -> None:
        super().__init__(send)
        self._receive = receive
        self._parts: list[bytes] = []
        self._gone: Callable[[], None] | None = None
        self._leaving: asyncio.Task[None] | None = None

    def watch(self, gone: Callable[[], None]) -> None:
        """See Line.watch."""
        self._gone = gone
        self._leaving = asyncio.get_running_loop().create_task(self._wait_until_gone())

    async def unwatch(self) -> None:
        """See Line.unwatch."""
        self._gone = None
        if self._leaving is not None:
            self._leaving.cancel()
            await asyncio.wait([self._leaving])

    def write(self, data: bytes) -> None:
        """See Line.write."""
        self._parts.append(data)

    async def room(self) -> None:
        """See Line.room: ``send`` waits itself."""

    async def flush(self) -> None:
        """See Line.flush."""
        if self._parts:
            body, self._parts = b"".join(self._parts), []
            await self.send({"type": "http.response.body", "body": body, "more_body": True})

    async def end(self, last: bytes) -> None:
        """See Line.end."""
        await self.send({"type": "http.response.body", "body": b"".join((*self._parts, last))})

    async def _wait_until_gone(self) -> None:
        await until_gone(self._receive)
        if self._gone is not None:
            self._gone()


def line_of(scope: Scope, receive: Receive, send: Send) -> Line:
    """The line of a request: the server's own, where it has one."""
    line: Line | None = (scope.get("extensions") or {}).get(KEY)
    if line is None:
        return AsgiLine(receive, send)
    line.send = send  # with whatever middleware has wrapped around it
    return line


async def until_gone(receive: Receive) -> None:
    """Return when the client has left, or has its whole answer."""
    while (await receive())["type"] != "http.disconnect":
        pass
