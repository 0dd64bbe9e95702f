"""How a message-queue engine shows that it is alive: what it says on its health socket, and what the front makes of that.

Sources: vLLM's MQLLMEngine. ``probe``: v0.6.2 before its release; ``beat``: PR 8583 (v0.6.2, v0.6.3; Aphrodite's copy); ``pid``: PR 9818.
"""

from __future__ import annotations

import math
import threading
import time
from typing import Any, Literal

import zmq

Generation = Literal["probe", "beat", "pid", "stamp"]

ASK = b"?"
"""On the input socket: is the engine well? It waits behind the requests that lie there."""

OK = b"ok"

_PATIENCE = 3
"""A loop that has not turned for so many times the front's limit is told by the thread beside it. Source: PR 8583."""

_END_S = 1.0


class Heart:
    """The engine's side. On the engine loop's thread.

    Args:
        socket: the health socket; nobody else may use it.
        idle_beats: say unasked that all is well, while there is nothing to do.
    """

    def __init__(self, socket: zmq.Socket[bytes], *, idle_beats: bool) -> None:
        self._socket = socket
        self._idle_beats = idle_beats

    def turned(self, *, loading: bool) -> None:
        """The loop turns; or is about to load a model, which may take minutes."""

    def idle(self) -> None:
        """It turns with nothing to do."""
        if self._idle_beats:
            self.say()

    def say(self, words: bytes = OK) -> None:
        """Send, unless nobody takes it."""
        if self._socket.poll(0, zmq.POLLOUT):
            self._socket.send(words)

    def stop(self) -> None:
        """The socket is about to be closed."""


class BeatingHeart(Heart):
    """Says so from a thread of its own, which the loop does not disturb as long as it lets go of the interpreter lock now and then.

    Args:
        interval: seconds between two beats.
        limit: the front's, in seconds.
    """

    def __init__(self, socket: zmq.Socket[bytes], interval: float, limit: float) -> None:
        super().__init__(socket, idle_beats=False)
        self._interval = interval
        self._limit = _PATIENCE * limit
        self._last_turn = time.monotonic()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="heartbeat", daemon=True)
        self._thread.start()

    def turned(self, *, loading: bool) -> None:
        """See Heart.turned."""
        self._last_turn = math.inf if loading else time.monotonic()

    def idle(self) -> None:
        """See Heart.idle."""
        self.turned(loading=False)

    def stop(self) -> None:
        """See Heart.stop."""
        self._ended.set()
        self._thread.join(_END_S)

    def _beat(self) -> None:
        while not self._ended.is_set():
            age = time.monotonic() - self._last_turn
            well = age <= self._limit
            self.say(OK if well else f"the engine's loop has not turned for {age:.1f} s, the limit is {self._limit:g} s".encode())
            self._ended.wait(self._interval)


def make_heart(socket: zmq.Socket[bytes], health: Generation, interval: float, limit: float) -> Heart:
    """The engine's side of a generation."""
    if health == "beat":
        return BeatingHeart(socket, interval, limit)
    return Heart(socket, idle_beats=health != "probe")


class Ear:
    """The front's side: what it has heard, and how long ago. On the event loop's thread.

    Args:
        health: the generation.
        interval: seconds of quiet after which ``probe`` asks.
        limit: seconds without a beat, or without an answer, that count as death.
    """

    def __init__(self, health: Generation, interval: float, limit: float) -> None:
        self._health = health
        self._interval = interval
        self._limit = limit
        self._complaint = ""
        self._asked: float | None = None
        self.start()

    def start(self) -> None:
        """Listen from now on."""
        self._heard = time.monotonic()

    def hear(self, words: bytes) -> None:
        """What the health socket brought."""
        self._heard, self._asked = time.monotonic(), None
        self._complaint = "" if words == OK else words.decode()

    @property
    def quiet_s(self) -> float:
        """Seconds since it heard something."""
        return time.monotonic() - self._heard

    def ask(self, socket: Any) -> None:
        """Send a probe when that is due; the socket is the input's, asynchronous."""
        if self._health == "probe" and self._asked is None and self.quiet_s > self._interval:
            self._asked = time.monotonic()
            socket.send(ASK)

    def fault(self) -> str:
        """Why the engine counts as dead; empty while it does not."""
        if self._complaint:
            return self._complaint
        if self._health == "beat":
            return self._too_long("has given no heartbeat", self.quiet_s)
        return "" if self._asked is None else self._too_long("has not answered a probe", time.monotonic() - self._asked)

    def _too_long(self, what: str, seconds: float) -> str:
        if seconds <= self._limit:
            return ""
        return f"the engine {what} for {seconds:.1f} s, the limit is {self._limit:g} s (health_timeout)"
