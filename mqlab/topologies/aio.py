"""In-process with asyncio: the engine's loop is a task among the streams it feeds.

    ┌────────────────────── one process ──────────────────────┐
    │ event loop:  streams ◄─ fan-out ◄─ schedule, account     │
    │                new / aborted ─► tracker ─► engine task   │
    │ worker thread:            only the device wait           │
    └──────────────────────────────────────────────────────────┘

Reproduces: vLLM's AsyncLLMEngine (v0.6.3): commands are collected and applied at the next engine step, only the model's
execution leaves the loop, everything else shares the loop and the GIL with HTTP. With ``fan_out="worker"`` outputs of a step are put
into the streams' queues by the worker thread, at the begin of the next step's device wait, as its async output callback did: such a
put wakes no sleeping loop, so readers go on when that step ends, one step late. Leaves out: pipeline stages; detokenising and
accounting in that callback (here they stay on the loop).
"""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal

from mqlab.client.background import cancel_from_anywhere, watch_loop
from mqlab.client.local import LocalClient
from mqlab.client.queue import Queue
from mqlab.client.slot import Slot
from mqlab.client.streams import Streams
from mqlab.plan import InFlight, SampledTokens
from mqlab.types import Command, Delta, Event, ModelInfo, Shape, Step
from mqlab.wire.wiring import Wiring


@dataclass(frozen=True)
class Options:
    """What can be chosen.

    Attributes:
        fan_out: who hands tokens to the streams: the ``loop``, or the ``worker`` thread while the loop sleeps.
    """

    fan_out: Literal["loop", "worker"] = "loop"


PRESETS = {"historical": Options(fan_out="worker"), "best": Options()}


class AioClient(LocalClient):
    """The core in an asyncio task; its device wait in a thread."""

    shape = Shape("aio", processes=(("front + core", ("event loop", "device wait")),))

    def __init__(self, wiring: Wiring, options: Options = PRESETS["best"]) -> None:
        super().__init__(wiring)
        self._late = options.fan_out == "worker"
        self.streams = Streams(Queue if self._late else Slot)
        self._outbox: list[Step] = []
        self._inbox: list[Command] = []
        self._arrived = asyncio.Event()
        self._engine: asyncio.Task[None] | None = None
        self._watch: asyncio.Task[None] | None = None

    async def _start(self) -> ModelInfo:
        info = await super()._start()
        loop = asyncio.get_running_loop()
        # Both tasks hold the client weakly between turns, so that a dropped client can be collected.
        self._engine = loop.create_task(_engine_loop(weakref.ref(self), self._arrived, self.timing.idle_interval))
        self._watch = loop.create_task(watch_loop(weakref.ref(self), self.timing.health_interval))
        weakref.finalize(self, cancel_from_anywhere, loop, self._engine, self._watch)
        return info

    async def _send(self, command: Command) -> None:
        self._post(command)

    def _post(self, command: Command) -> None:
        self._inbox.append(command)
        self._arrived.set()

    def _take_commands(self) -> None:
        self._arrived.clear()
        inbox, self._inbox = self._inbox, []
        for command in inbox:
            self._tell(self._core.apply(command))

    def _tell(self, events: list[Event]) -> None:
        """Deliver at once, behind what waits to be put."""
        if events:
            self._put_rest()
        for event in events:
            self._deliver(event)

    def _put_rest(self) -> None:
        outbox, self._outbox = self._outbox, []
        for step in outbox:
            self._deliver(step)

    def _finish(self, sampled: SampledTokens) -> None:
        events = self._core.finish(sampled)
        steps = [event for event in events if type(event) is Step]
        if self._late and self._core.has_work and not self._core.loading and len(steps) == len(events):
            self._outbox = steps
        else:
            self._tell(events)

    async def _flown(self) -> SampledTokens:
        """Launch a step, wait for it; the worker puts what the one before brought, the loop what ends a request."""
        flight = self._core.begin()
        going_on, last = _split(self._outbox)
        self._outbox = []
        put = self.streams.put
        # The interpreter's lock guards asyncio's own lists, not uvloop's: there the loop puts all, when the worker has woken it.
        apart = isinstance(asyncio.get_running_loop(), asyncio.BaseEventLoop)
        try:
            return await self._landed(Behind(flight, partial(put, going_on)) if apart else flight)
        finally:
            put(last if apart else [*going_on, *last])

    async def turn(self) -> bool:
        """Apply what has come, run one step; whether there is more to do."""
        if not self._alive:
            return False
        try:
            self._take_commands()
            if not self._core.has_work:
                self._put_rest()
                self._core.idle()
                return False
            sampled = await self._flown()
            self._take_commands()
            self._finish(sampled)
        except Exception as error:
            self._put_rest()
            self._fatal(error)
        return self._alive

    async def _stop(self) -> None:
        tasks = [task for task in (self._engine, self._watch) if task is not None]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        await super()._stop()


@dataclass(frozen=True, slots=True)
class Behind:
    """A flight with something to do while it lasts, by whoever waits for it."""

    inner: InFlight
    do: Callable[[], None]

    def wait(self) -> SampledTokens:
        """The inner flight's tokens."""
        self.do()
        return self.inner.wait()


def _split(steps: list[Step]) -> tuple[list[Delta], list[Delta]]:
    """Their deltas that end no request, and those that do: another thread may put only the first."""
    deltas = [delta for step in steps for delta in step.deltas]
    return [delta for delta in deltas if delta.finish is None], [delta for delta in deltas if delta.finish is not None]


async def _engine_loop(client: weakref.ref[AioClient], arrived: asyncio.Event, idle_interval: float) -> None:
    while True:
        try:
            async with asyncio.timeout(idle_interval):
                await arrived.wait()
        except TimeoutError:
            pass
        while await _one_turn(client):
            await asyncio.sleep(0)


async def _one_turn(client: weakref.ref[AioClient]) -> bool:
    strong = client()
    return strong is not None and await strong.turn()
