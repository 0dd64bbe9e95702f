"""In-process and synchronous: the ceiling.

    ┌────────────── one process, one thread ──────────────┐
    │  client ── call ──► core.add / abort                 │
    │  pump:   while has_work: core.step(); sleep(0)       │
    └──────────────────────────────────────────────────────┘

Reproduces: vLLM V0's LLMEngine.step loop and V1's InprocClient; nano-vllm. Leaves out: V0's deferred output processing.
A step blocks the event loop for as long as it lasts; nothing is encoded, no thread and no socket is crossed. A load runs in a thread.
"""

from __future__ import annotations

import asyncio
import weakref
from dataclasses import dataclass

from mqlab.client.background import cancel_from_anywhere, watch_loop
from mqlab.client.local import WORKER, LocalClient
from mqlab.types import Command, Event, Health, ModelInfo, Shape
from mqlab.wire.wiring import Wiring
from mqlab.wire.worker import Worker


@dataclass(frozen=True)
class Options:
    """This layout has nothing to choose."""


PRESETS = {"historical": Options(), "best": Options()}
RIG = {"sees_hangs": False, "steps_apart": False}


class InprocClient(LocalClient):
    """The core on the client's own event loop."""

    shape = Shape("inproc", processes=(("front + core", ("event loop",)),))

    def __init__(self, wiring: Wiring, options: Options = PRESETS["best"]) -> None:
        super().__init__(wiring)
        self._pump: asyncio.Task[None] | None = None
        self._watch: asyncio.Task[None] | None = None

    async def _start(self) -> ModelInfo:
        info = await super()._start()
        # Steps run on this thread. Were the one that built the core to live on, OpenMP would count both threads' teams against the
        # cores, stop spinning, and every step would take a third longer.
        await self._worker.end(self.timing.stop_grace)
        loop = asyncio.get_running_loop()
        self._watch = loop.create_task(watch_loop(weakref.ref(self), self.timing.health_interval))
        weakref.finalize(self, cancel_from_anywhere, loop, self._watch)
        return info

    def watch_once(self) -> None:
        """See that all that a step needs is there: between requests nothing else turns."""
        self.beat()

    async def _send(self, command: Command) -> None:
        self._post(command)
        # Like every other layout, a call or request lets the rest of the loop run.
        await asyncio.sleep(0)

    def _post(self, command: Command) -> None:
        try:
            for event in self._core.apply(command):
                self._deliver(event)
        except Exception as error:
            self._fatal(error)
        self.beat()
        if self._alive and self._core.has_work and (self._pump is None or self._pump.done()):
            # The task holds the client only while there is work: an idle client can be dropped and collected.
            self._pump = asyncio.get_running_loop().create_task(self._run())

    def _health(self) -> Health:
        # Who asks runs on the loop that turns the engine: between steps it turns, and during one nobody can ask.
        return Health(state="ready", phase="loading" if self._core.loading else "idle")

    async def _run(self) -> None:
        try:
            while self._alive and self._core.has_work:
                for event in self._core.step() if not self._core.loading else await self._load():
                    self._deliver(event)
                await asyncio.sleep(0)
        except Exception as error:
            self._fatal(error)

    async def _load(self) -> list[Event]:
        """A part of a load, off the loop as at the start: a step lasts milliseconds, this perhaps minutes."""
        self._worker = Worker(WORKER)
        sampled = await self._landed(self._core.begin())
        await self._worker.end(self.timing.stop_grace)
        return self._core.finish(sampled)

    async def _stop(self) -> None:
        tasks = [task for task in (self._pump, self._watch) if task is not None]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        await super()._stop()
