"""A client whose core lives in a process of its own: launching it, watching it, ending it."""

from __future__ import annotations

import asyncio
import weakref
from abc import abstractmethod
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from mqlab.client.base import BaseClient, watch_loop
from mqlab.errors import EngineStartError
from mqlab.types import Health, ModelInfo
from mqlab.wire.codecs import Codec
from mqlab.wire.liveness import ExitWatch
from mqlab.wire.process import Child, launch
from mqlab.wire.report import Report
from mqlab.wire.rundir import RunDir
from mqlab.wire.sockets import SocketSet, async_sockets
from mqlab.wire.spec import Spec
from mqlab.wire.statspage import PAGE, StatsPage
from mqlab.wire.wiring import Wiring

_LAST_OUTPUTS_S = 0.02


class Hold:
    """All that must be given back, apart from the client, so that it can be given back when the client is simply dropped."""

    def __init__(self, within: Path | None) -> None:
        self.loop = asyncio.get_running_loop()
        self.run_dir = RunDir(within)
        self.child: Child | None = None
        self.watch: ExitWatch | None = None
        self.sockets: SocketSet[Any] | None = None
        self.tasks: list[asyncio.Task[None]] = []
        self.ready = asyncio.Event()
        self.ended: asyncio.Future[None] = self.loop.create_future()

    def end(self) -> None:
        """The child is gone, or about to be."""
        if not self.ended.done():
            self.ended.set_result(None)

    def release(self) -> None:
        """Give everything back; on the loop's thread, or on any once the loop has stopped. Idempotent."""
        on_loop = _running_loop() is self.loop
        if on_loop:
            for task in self.tasks:
                task.cancel()
        if self.watch is not None:
            self.watch.close()
        if self.sockets is not None:
            self.sockets.close(off_loop=not on_loop)
        if self.child is not None:
            if not self.loop.is_closed():
                self.loop.remove_reader(self.child.reports.fd)
            self.child.reap()
        self.run_dir.remove()

    def abandon(self) -> None:
        """Release from wherever the last reference was dropped."""
        if self.loop.is_running() and _running_loop() is not self.loop:
            self.loop.call_soon_threadsafe(self.release)
        else:
            self.release()


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


class RemoteClient(BaseClient):
    """Launches ``entry`` in a child, tells its death from its slowness, and ends it in bounded time."""

    own_process = True
    io_threads = 1

    def __init__(self, wiring: Wiring, *, log_to_terminal: bool = False) -> None:
        super().__init__(wiring.timing)
        self._wiring = wiring
        self._log_to_terminal = log_to_terminal
        self._codec: Codec = wiring.build_codec()
        self._hold: Hold | None = None
        self._within: Path | None = None
        self._reports: list[Report] = []

    # --- what a topology adds

    @abstractmethod
    def _entry(self, run_dir: RunDir) -> Spec:
        """What the child runs: a factory called with (reporter, run_dir path)."""

    @abstractmethod
    def _open_before(self, sockets: SocketSet[Any], run_dir: RunDir) -> None:
        """Open the sockets that must exist before the engine does."""

    @abstractmethod
    async def _handshake(self, sockets: SocketSet[Any], run_dir: RunDir) -> ModelInfo:
        """The engine's sockets are up: open the rest and learn what the engine is."""

    @abstractmethod
    def _receivers(self) -> list[Any]:
        """Coroutines that feed events to the client; they must hold it weakly while they wait."""

    # --- start

    def publish(self, folder: Path) -> None:
        """See BaseClient.publish."""
        self._within = folder

    async def _start(self) -> ModelInfo:
        hold = self._hold = Hold(self._within)
        weakref.finalize(self, hold.abandon)
        self._page = StatsPage.create(hold.run_dir.path / PAGE)
        hold.sockets = async_sockets(self._wiring.front_socket.build, io_threads=self.io_threads)
        self._open_before(hold.sockets, hold.run_dir)
        hold.child = launch(self._entry(hold.run_dir), hold.run_dir.path, log_to_terminal=self._log_to_terminal)
        self._watch_child(hold, hold.child)
        info = await self._become_ready(hold, hold.sockets)
        self._start_tasks(hold)
        return info

    def _watch_child(self, hold: Hold, child: Child) -> None:
        me = weakref.WeakMethod(self._on_exit)
        hold.watch = ExitWatch(child, lambda: _call_weak(me))
        reports = weakref.WeakMethod(self._on_report)
        hold.loop.add_reader(child.reports.fd, lambda: _call_weak(reports))

    async def _become_ready(self, hold: Hold, sockets: SocketSet[Any]) -> ModelInfo:
        handshake = hold.loop.create_task(self._ready_then_handshake(hold, sockets))
        try:
            await asyncio.wait({handshake, hold.ended}, timeout=self.timing.start_timeout, return_when=asyncio.FIRST_COMPLETED)
            if not handshake.done():
                raise self._start_error(hold)
            try:
                return handshake.result()
            except Exception as error:
                raise EngineStartError(f"the handshake failed: {type(error).__name__}: {error}") from error
        finally:
            handshake.cancel()

    def _start_error(self, hold: Hold) -> EngineStartError:
        assert hold.child is not None
        if not hold.ended.done():
            limit = f"the engine was not ready within {self.timing.start_timeout:g} s (start_timeout)"
            return EngineStartError(f"{limit}; raise the limit if it was still loading", log_tail=hold.child.log_tail())
        failed = self._failure()
        cause = failed.cause if failed else hold.child.describe_exit()
        # The child's own traceback is worth more than the end of its log, which repeats it.
        return EngineStartError(cause, hold.child.exit_code(), failed.traceback if failed else hold.child.log_tail())

    async def _ready_then_handshake(self, hold: Hold, sockets: SocketSet[Any]) -> ModelInfo:
        await hold.ready.wait()
        return await self._handshake(sockets, hold.run_dir)

    def _start_tasks(self, hold: Hold) -> None:
        watch = watch_loop(weakref.ref(self), self.timing.health_interval)
        for coroutine in [*self._receivers(), watch]:
            hold.tasks.append(hold.loop.create_task(coroutine))

    # --- what the child tells

    def _on_report(self) -> None:
        hold = self._hold
        if hold is None or hold.child is None:
            return
        self._reports += hold.child.reports.read()
        if any(report.kind == "ready" for report in self._reports):
            hold.ready.set()

    def _on_exit(self) -> None:
        hold = self._hold
        if hold is None or hold.child is None:
            return
        self._on_report()
        hold.loop.remove_reader(hold.child.reports.fd)
        hold.end()
        # What it sent before it died may still lie in a socket: the streams read that first.
        mourn = weakref.WeakMethod(self._mourn)
        hold.loop.call_later(_LAST_OUTPUTS_S, lambda: _call_weak(mourn))

    def _mourn(self) -> None:
        hold = self._hold
        if hold is None or hold.child is None:
            return
        failed = self._failure()
        cause = failed.cause if failed else hold.child.describe_exit()
        self._die(f"the engine died: {cause}", failed.traceback if failed else "")

    def _failure(self) -> Report | None:
        return next((report for report in self._reports if report.kind == "failed"), None)

    def lose(self, error: Exception) -> None:
        """A message could not be understood: what follows cannot be trusted."""
        self._die(f"a message of the engine could not be handled: {type(error).__name__}: {error}")
        self._end_hung()

    def _health(self) -> Health:
        health = super()._health()
        child = self._hold.child if self._hold is not None else None
        stopped_s = child.stopped_for() if child is not None else 0.0
        if health.ok and stopped_s > self.timing.stopped_limit:
            limit = f"the limit is {self.timing.stopped_limit:g} s (stopped_limit)"
            detail = f"the engine process has been stopped (SIGSTOP) for {stopped_s:.1f} s, {limit}"
            return Health(state="hung", detail=detail, phase=health.phase, phase_age_s=health.phase_age_s)
        return health

    def _end_hung(self) -> None:
        if self._hold is not None and self._hold.child is not None:
            self._hold.child.kill()

    @property
    def processes(self) -> dict[str, int]:
        """See BaseClient.processes."""
        child = self._hold.child if self._hold is not None else None
        return {} if child is None else {"engine": child.pid}

    @property
    def run_folder(self) -> Path | None:
        """See BaseClient.run_folder."""
        return self._hold.run_dir.path if self._hold is not None else None

    def log_tail(self) -> str:
        """See BaseClient.log_tail."""
        return self._hold.child.log_tail() if self._hold is not None and self._hold.child is not None else ""

    # --- stop

    async def _stop(self) -> None:
        hold = self._hold
        if hold is None:
            return
        if hold.child is not None:
            hold.child.terminate()
            await asyncio.wait({hold.ended}, timeout=self.timing.stop_grace)
        hold.end()
        hold.release()
        if hold.tasks:
            await asyncio.wait(hold.tasks)
        if self._page is not None:
            self._page.close()
            self._page = None


def _call_weak(method: weakref.WeakMethod[Any]) -> None:
    strong = method()
    if strong is not None:
        strong()


async def feed(client: weakref.ref[Any], socket: Any, handle: Callable[[Any, bytes], Awaitable[None]]) -> None:
    """Call ``handle(client, frame)`` for every message of a socket, for as long as the client exists; hold it only meanwhile."""
    while True:
        frame = await socket.recv()
        strong = client()
        if strong is None:
            return
        try:
            await handle(strong, frame)
        except Exception as error:
            strong.lose(error)
            return
        del strong
        # A message that is already here does not suspend the await above: without this a burst would keep the loop to itself.
        await asyncio.sleep(0)


def page_of(run_dir: Path) -> StatsPage:
    """The page of the engine whose run folder this is; for the engine's side."""
    return StatsPage.open(run_dir / PAGE)
