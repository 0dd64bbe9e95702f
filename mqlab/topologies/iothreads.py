"""An engine's process with three threads: a busy loop that only meets queues, between one that decodes and one that encodes.

Decoding and encoding leave the engine's loop, and input arrives while the device runs. Source: vLLM V1's EngineCore (PR 9289 onwards).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from queue import SimpleQueue
from typing import Any

from mqlab.engine.service import Service, died_of
from mqlab.topologies.busyloop import BusyLoop
from mqlab.types import Command, Event
from mqlab.wire.report import Reporter
from mqlab.wire.sockets import SocketSet

_LINGER_MS = 1000

Inlet = Callable[[], Iterator[Command]]
"""Run in the input thread: opens its sockets, then gives what arrives."""

Outlet = Callable[[], tuple[SocketSet[Any], Callable[[Event], object]]]
"""Run in the output thread: opens its sockets; gives them, and what sends an event."""

_Outbox = SimpleQueue[Event | None]
_Inbox = SimpleQueue[Command | Exception | None]


def serve(service: Service, idle_interval: float, reporter: Reporter, inlet: Inlet, outlet: Outlet) -> None:
    """Run an engine until it is stopped; what it dies of is its last event.

    Raises:
        whatever it dies of.
    """
    outbox: _Outbox = SimpleQueue()
    loop = BusyLoop(service, outbox, idle_interval)
    _start_thread("input", _receive, inlet, loop.inbox)
    output = _start_thread("output", _send, outlet, outbox, loop.inbox)
    reporter.ready()
    try:
        loop.run()
    except Exception as error:
        outbox.put(died_of(error))
        outbox.put(None)
        output.join(2 * _LINGER_MS / 1000)
        raise


def _receive(inlet: Inlet, inbox: _Inbox) -> None:
    """The input thread. What it cannot decode is the loop's death."""
    try:
        for command in inlet():
            inbox.put(command)
    except Exception as error:
        inbox.put(error)


def _send(outlet: Outlet, outbox: _Outbox, inbox: _Inbox) -> None:
    """The output thread; None flushes and ends it. What it cannot encode is the loop's death."""
    try:
        sockets, send = outlet()
    except Exception as error:
        inbox.put(error)
        return
    while (event := outbox.get()) is not None:
        try:
            send(event)
        except Exception as error:
            inbox.put(error)
    sockets.close(linger_ms=_LINGER_MS)


def _start_thread(name: str, target: Callable[..., None], *args: Any) -> threading.Thread:
    thread = threading.Thread(target=target, args=args, name=name, daemon=True)
    thread.start()
    return thread
