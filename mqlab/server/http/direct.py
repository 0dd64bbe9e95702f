"""Serves a connection, and gives streams a way to it that costs no more than the bytes: no message, no coroutine, no task.

Heads, bodies, ends and errors go uvicorn's way, so that its state of the connection stays right (keep-alive, pipelining, shutdown); only
what is between the head and the end of a stream is written to the transport here. How much of it may wait for a reader who does not
read is bounded, half in the process, half in the kernel, which takes megabytes by itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable
from typing import Any

from starlette.requests import ClientDisconnect
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from mqlab.server.http.line import KEY, Headers, Line
from mqlab.server.http.patience import PatientProtocol


class DirectProtocol(PatientProtocol):
    """A connection whose requests' scopes have a DirectLine.

    Attributes:
        max_unsent: bytes that may wait for the reader; None leaves that to the system.
        line: of the request that runs, while it is watched.
    """

    max_unsent: int | None = None
    line: DirectLine | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """See asyncio.Protocol."""
        super().connection_made(transport)
        if self.max_unsent is not None:
            half = max(1, self.max_unsent // 2)
            transport.set_write_buffer_limits(half)
            connection = transport.get_extra_info("socket")
            if connection is not None and connection.family != socket.AF_UNIX:
                with contextlib.suppress(OSError):  # a system without it: its buffers grow as they please
                    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, half)

    def connection_lost(self, exc: Exception | None) -> None:
        """See asyncio.Protocol."""
        super().connection_lost(exc)
        if self.scope is not None:
            self.scope.pop("extensions", None)  # which refers to this: the collector is spared a cycle for every connection
        if self.line is not None:
            self.line.lost()

    def pause_writing(self) -> None:
        """See asyncio.Protocol."""
        super().pause_writing()
        if self.line is not None:
            self.line.ready = False

    def on_headers_complete(self) -> None:
        """See httptools. The request's task, which reads the scope, has not had its first turn."""
        super().on_headers_complete()
        self.scope["extensions"] = {KEY: DirectLine(self, self.cycle)}  # pyright: ignore[reportGeneralTypeIssues]


class DirectLine(Line):
    """The way of one response straight to its connection's transport."""

    def __init__(self, protocol: DirectProtocol, cycle: RequestResponseCycle) -> None:
        sent: Any = cycle.send
        super().__init__(sent)
        self._protocol = protocol
        self._cycle = cycle
        self._write = protocol.transport.write
        self._chunked = cycle.scope["http_version"] != "1.0"
        self._gone: Callable[[], None] | None = None

    def watch(self, gone: Callable[[], None]) -> None:
        """See Line.watch."""
        if self._cycle.disconnected or self._protocol.transport.is_closing():
            raise ClientDisconnect
        self._gone = gone
        self._protocol.line = self
        self._protocol.flow.resume_reading()  # a long body may have paused it, and then nobody would hear the reader leave

    async def unwatch(self) -> None:
        """See Line.unwatch."""
        self._gone, self.ready = None, False
        if self._protocol.line is self:
            self._protocol.line = None

    def lost(self) -> None:
        """The connection is gone."""
        self.ready = False
        self._cycle.disconnected = True  # uvicorn tells the last of several pipelined requests only
        if self._gone is not None:
            self._gone()

    async def start(self, headers: Headers) -> None:
        """See Line.start. HTTP/1.0 knows no chunks: there the end of the connection is that of the body."""
        if not self._chunked:
            self._cycle.chunked_encoding = False
        await super().start(headers)

    def write(self, data: bytes) -> None:
        """See Line.write."""
        self._write(b"%x\r\n%b\r\n" % (len(data), data) if self._chunked else data)

    async def room(self) -> None:
        """See Line.room."""
        while self._protocol.flow.write_paused and not self._cycle.disconnected:
            await self._protocol.flow.drain()

    async def flush(self) -> None:
        """See Line.flush."""
        self.ready = not self._protocol.flow.write_paused and not self._cycle.disconnected

    async def end(self, last: bytes) -> None:
        """See Line.end."""
        self.ready = False
        if not self._chunked and not self._cycle.disconnected:
            self._write(last)
            last = b""
        await self.send({"type": "http.response.body", "body": last})
