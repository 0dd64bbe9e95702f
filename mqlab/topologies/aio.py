"""In-process with asyncio: the engine's loop is a task among the streams it feeds.

    ┌────────────────────── one process ──────────────────────┐
    │ event loop:  streams ◄─ fan-out ◄─ schedule, account     │
    │                new / aborted ─► tracker ─► engine task   │
    │ worker thread:            only the device wait           │
    └──────────────────────────────────────────────────────────┘

Reproduces: vLLM's AsyncLLMEngine (v0.6.3): commands are collected and applied at the next engine step, only the model's
execution leaves the loop, everything else shares the loop and the GIL with HTTP. Leaves out: pipeline stages, and outputs put
on queues from the worker thread (their wake-up comes late).
"""

from __future__ import annotations

import asyncio
import weakref
from dataclasses import dataclass

from mqlab.client.base import watch_loop
from mqlab.client.local import LocalClient
from mqlab.types import Command, ModelInfo, Shape
from mqlab.wire.wiring import Wiring


@dataclass(frozen=True)
class Options:
    """This layout has nothing to choose yet."""


PRESETS = {"historical": Options(), "best": Options()}


class AioClient(LocalClient):
    """The core in an asyncio task; its device wait in a thread."""

    shape = Shape("aio", processes=(("front + core", ("event loop", "device wait")),))

    def __init__(self, wiring: Wiring, options: Options = PRESETS["best"]) -> None:
        super().__init__(wiring)
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
        weakref.finalize(self, _cancel, loop, self._engine, self._watch)
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
            for event in self._core.apply(command):
                self._deliver(event)

    async def turn(self) -> bool:
        """Apply what has come, run one step; whether there is more to do."""
        if not self._alive:
            return False
        try:
            self._take_commands()
            if not self._core.has_work:
                self._core.idle()
                return False
            sampled = await self._landed(self._core.begin())
            self._take_commands()
            for event in self._core.finish(sampled):
                self._deliver(event)
        except Exception as error:
            self._fatal(error)
        return self._alive

    async def _stop(self) -> None:
        tasks = [task for task in (self._engine, self._watch) if task is not None]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        await super()._stop()


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


def _cancel(loop: asyncio.AbstractEventLoop, *tasks: asyncio.Task[None]) -> None:
    for task in tasks:
        if not loop.is_closed():
            loop.call_soon_threadsafe(task.cancel)
