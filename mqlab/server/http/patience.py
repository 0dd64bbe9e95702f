"""How long a server waits for a request, how much of a head it takes, and how it closes a connection without losing a request.

uvicorn waits for ever for a head or a body that does not end, keeps all of a head, however long, and closes an idle connection although a
request has just arrived on it.
"""

from __future__ import annotations

import asyncio
import re
import select
from collections.abc import Sized
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from mqlab.server.errors import ApiError

if TYPE_CHECKING:
    from uvicorn._types import ASGI3Application

_LINGER_S = 1.0
"""A connection that was refused is read from for so long: unread bytes would make the system throw away the refusal, too."""


_LONGEST_PIPELINE = 8
"""Requests that may wait for the answers before theirs; who has sent more is not read, and so cannot fill the memory with them."""

_UPGRADE = re.compile(rb"\r\nupgrade:", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Patience:
    """Limits of one request.

    Attributes:
        head_s: from a head's first bytes to its end.
        body_s: for a body, beside the time that its length takes at the slowest rate.
        slowest: of a body, bytes per second.
        longest_head: bytes that a head may have beyond what came with its first ones.
        longest_body: bytes; one that does not tell its length has the time of this.
    """

    head_s: float = 30.0
    body_s: float = 60.0
    slowest: float = 64 << 10
    longest_head: int = 64 << 10
    longest_body: int = 64 << 20

    def for_body(self, headers: list[tuple[bytes, bytes]]) -> float:
        """Seconds for the body that these headers announce."""
        length = next((int(value) for name, value in headers if name == b"content-length"), self.longest_body)
        return self.body_s + min(length, self.longest_body) / self.slowest


class _Flow(FlowControl):
    """Of a connection that is not read while requests wait on it: uvicorn reads on after every answer, and whenever a body is asked for."""

    def __init__(self, transport: asyncio.Transport, pipeline: Sized) -> None:
        super().__init__(transport)
        self._pipeline = pipeline

    def resume_reading(self) -> None:
        """See FlowControl."""
        if len(self._pipeline) < _LONGEST_PIPELINE:
            super().resume_reading()


class PatientProtocol(HttpToolsProtocol):
    """Serves a connection. A request that does not arrive in time is answered with 408, one whose head has no end with 431.

    Who sends nothing at all has an idle connection, as between two requests; it costs a timer.

    Attributes:
        patience: the limits; None for none.
    """

    patience: Patience | None = None
    _part: Literal["none", "head", "body"] = "none"
    _timed = "none"
    _timer: asyncio.TimerHandle | None = None
    _head = 0
    _begun = False
    _running: RequestResponseCycle | None = None
    _deaf = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """See asyncio.Protocol. However soon idle connections end, the first request has its time."""
        super().connection_made(transport)
        self.flow = _Flow(transport, self.pipeline)
        self._arm_keep_alive(0.0 if self.patience is None else self.patience.head_s)

    def connection_lost(self, exc: Exception | None) -> None:
        """See asyncio.Protocol. uvicorn tells the last of several pipelined requests only."""
        self._stop_timer()
        self._unset_keepalive_if_required()
        super().connection_lost(exc)
        if self._running is not None and not self._running.response_complete:
            self._running.disconnected = True
            self._running.message_event.set()

    def data_received(self, data: bytes) -> None:
        """See asyncio.Protocol."""
        if self._deaf:
            return
        self._begun = False
        if self._part != "body" and b"pgrade" in data:
            data = _without_upgrade(data)
        super().data_received(data)
        if self._deaf:
            return
        if self.patience is not None and self._part != "none":
            self._limit(self.patience, 0 if self._begun else len(data))
        elif self._timer is not None:
            self._stop_timer()
        if self._part == "none" and self.timeout_keep_alive_task is None and self._idle:
            self._arm_keep_alive()

    def on_message_begin(self) -> None:
        """See httptools."""
        self._part, self._timed, self._head, self._begun = "head", "none", 0, True
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        """See httptools."""
        super().on_headers_complete()
        self._part = "body"

    def on_message_complete(self) -> None:
        """See httptools."""
        self._part = "none"
        super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        """See HttpToolsProtocol."""
        self._refuse(ApiError(400, msg, code="invalid_http"))

    def timeout_keep_alive_handler(self) -> None:
        """Close, unless the next request has just arrived."""
        if self._has_unread:
            self._arm_keep_alive()
        else:
            super().timeout_keep_alive_handler()

    def shutdown(self) -> None:
        """Close when nothing is open here; what has just arrived is still answered."""
        if not (self._idle and self._has_unread):
            super().shutdown()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        self._running = cycle
        super()._start_asgi_task(cycle, app)

    @property
    def _idle(self) -> bool:
        return self.cycle is None or self.cycle.response_complete

    @property
    def _has_unread(self) -> bool:
        """Whether there is something to read that the loop has not come to."""
        if self.transport.is_closing() or self.flow.read_paused:
            return False
        waiting = select.poll()
        waiting.register(self.transport.get_extra_info("socket").fileno(), select.POLLIN)
        return bool(waiting.poll(0))

    def _arm_keep_alive(self, least: float = 0.0) -> None:
        seconds = max(least, self.timeout_keep_alive)
        self.timeout_keep_alive_task = self.loop.call_later(seconds, self.timeout_keep_alive_handler)

    def _limit(self, patience: Patience, more_head: int) -> None:
        """Bound what is being received; most requests arrive whole, and never come here."""
        self._head += more_head
        if self._part == "head" and self._head > patience.longest_head:
            self._refuse(ApiError(431, f"the headers are longer than {patience.longest_head} bytes", code="headers_too_long"))
        elif self._timer is None or self._timed != self._part:
            self._start_timer(patience)

    def _start_timer(self, patience: Patience) -> None:
        self._stop_timer()
        self._timed = self._part
        seconds = patience.head_s if self._part == "head" else patience.for_body(self.headers)
        self._timer = self.loop.call_later(seconds, self._expired, patience)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _expired(self, patience: Patience) -> None:
        behind = self.pipeline if self._part == "body" else not self._idle
        if self.flow.read_paused or behind:
            self._start_timer(patience)  # it waits for this server, or for the answer before it
        else:
            self._refuse(ApiError(408, f"the {self._part} of the request did not arrive in time", code="request_timeout"))

    def _refuse(self, error: ApiError) -> None:
        """Answer what is no request, or never becomes one, unless another answer is under way, which then is the last; hear no more."""
        self._deaf = True
        self._stop_timer()
        unanswered = self._part == "body" and not self.cycle.response_started and not self.pipeline
        between = self._part != "body" and self._idle
        if not (between or unanswered):
            return self._end_behind_answer()
        if unanswered:  # whoever works on it is told that its client has gone
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        body = error.body()
        head = b"content-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n" % len(body)
        self.transport.write(STATUS_LINE[error.status] + head + body)
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self._timer = self.loop.call_later(_LINGER_S, self.transport.close)
        return None

    def _end_behind_answer(self) -> None:
        if self._idle or self.pipeline:
            self.transport.close()
        else:
            self.cycle.keep_alive = False


def _without_upgrade(data: bytes) -> bytes:
    """A head that asks for no other protocol: the parser would take a request to end with its head, and lose its body. Java's own client
    asks for HTTP/2 with whatever it sends first."""
    head, end, rest = data.partition(b"\r\n\r\n")
    return _UPGRADE.sub(b"\r\nx-upgrade:", head) + end + rest
