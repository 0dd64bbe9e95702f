"""The core in a thread beside the event loop: two processes' worth of work, one interpreter lock.

    ┌──────────────────────── one process ────────────────────────┐
    │ event loop:     streams ◄── one event a turn ◄── deque ◄─┐  │
    │                 request, abort, call ─► queue ─┐         │  │
    │ engine thread:  busy loop: take, step, put ◄───┘ ────────┘  │
    └──────────────────────────────────────────────────────────────┘

Reproduces nobody's engine: it is ``v1`` without its process, its sockets and its codec. What it loses to ``v1`` is what the two loops take
from each other by the interpreter's lock (on a free-threaded build: nothing), what it wins is what encoding and sockets cost. Its puts
wake the loop (call_soon_threadsafe), which costs a write to a pipe whenever the loop may sleep.
"""

from __future__ import annotations

import asyncio
import contextlib
import weakref
from collections import deque
from dataclasses import dataclass
from functools import partial
from queue import SimpleQueue

from mqlab.client.background import cancel_from_anywhere, watch_loop
from mqlab.client.local import LocalClient
from mqlab.engine.service import Service, died_of
from mqlab.topologies.busyloop import BusyLoop
from mqlab.types import Command, Event, ModelInfo, Shape
from mqlab.wire.wiring import Wiring


@dataclass(frozen=True)
class Options:
    """This layout has nothing to choose."""


PRESETS = {"historical": Options(), "best": Options()}


class ThreadClient(LocalClient):
    """The loop's side."""

    shape = Shape("thread", processes=(("front + core", ("event loop", "engine loop")),))

    def __init__(self, wiring: Wiring, options: Options = PRESETS["best"]) -> None:
        super().__init__(wiring)
        self._inbox: SimpleQueue[Command | Exception | None] = SimpleQueue()
        self._watch: asyncio.Task[None] | None = None

    async def _start(self) -> ModelInfo:
        info = await super()._start()
        loop = asyncio.get_running_loop()
        outbox = Outbox(loop, weakref.ref(self))
        engine = BusyLoop(self._core, outbox, self.timing.idle_interval)
        self._inbox = engine.inbox
        # In the thread that built the core, which is also the one whose OpenMP threads are warm.
        self._worker.occupy(partial(_serve, engine, self._core, outbox), partial(engine.inbox.put, None))
        self._watch = loop.create_task(watch_loop(weakref.ref(self), self.timing.health_interval))
        weakref.finalize(self, cancel_from_anywhere, loop, self._watch)
        return info

    def beat(self) -> None:
        """See LocalClient.beat: here the engine's own thread does it."""

    async def _send(self, command: Command) -> None:
        self._post(command)

    def _post(self, command: Command) -> None:
        self._inbox.put(command)

    def on_event(self, event: Event) -> None:
        """What the engine's thread has put."""
        self._deliver(event)

    def _end_hung(self) -> None:
        self._inbox.put(None)

    async def _stop(self) -> None:
        if self._watch is not None:
            self._watch.cancel()
            await asyncio.wait([self._watch])
        await super()._stop()


class Outbox:
    """Events on their way from the engine's thread to the loop. A put wakes the loop, unless it is awake already.

    One event is delivered a turn: all at once, a burst would keep the loop to itself, and readers would see it as one delta.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, client: weakref.ref[ThreadClient]) -> None:
        self._loop = loop
        self._client = client
        self._events: deque[Event] = deque()
        self._awake = False

    def put(self, event: Event) -> None:
        """From the engine's thread."""
        self._events.append(event)
        if not self._awake:
            self._awake = True
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody listens
                self._loop.call_soon_threadsafe(self._deliver)

    def _deliver(self) -> None:
        client = self._client()
        if client is None:
            return
        if self._events:
            client.on_event(self._events.popleft())
        self._awake = False
        if self._events:  # looked at last: what was put before that line did not wake the loop
            self._awake = True
            self._loop.call_soon(self._deliver)


def _serve(engine: BusyLoop, service: Service, outbox: Outbox) -> None:
    """The engine's thread, until it is told to end."""
    try:
        engine.run()
    except Exception as error:
        outbox.put(died_of(error))
    else:
        service.close()
