"""A client whose core lives in a process of its own, perhaps with others that help it: launching, watching, ending them."""

from __future__ import annotations

import asyncio
import weakref
from abc import abstractmethod
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

from mqlab.client.background import watch_loop
from mqlab.client.base import BaseClient
from mqlab.client.watched import Watched
from mqlab.errors import ConfigError, EngineStartError, ModelError
from mqlab.types import Command, Health, ModelInfo
from mqlab.wire.codecs import Codec
from mqlab.wire.liveness import judge
from mqlab.wire.process import ENGINE, launch, log_tails
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
        self.children: list[Watched] = []
        self.sockets: SocketSet[Any] | None = None
        self.tasks: list[asyncio.Task[None]] = []

    async def until_ready(self) -> None:
        """Return when every child has said that it is ready."""
        for one in self.children:
            await one.ready.wait()

    @property
    def ends(self) -> set[asyncio.Future[None]]:
        """Done, each, once its child is gone."""
        return {one.ended for one in self.children}

    def release(self) -> None:
        """Give everything back; on the loop's thread, or on any once the loop has stopped. Idempotent."""
        on_loop = _running_loop() is self.loop
        if on_loop:
            for task in self.tasks:
                task.cancel()
        if self.sockets is not None:
            self.sockets.close(off_loop=not on_loop)
        for one in self.children:
            one.release()
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
    """Launches an engine, and its helpers if it has any; tells their death from their slowness, and ends them in bounded time.

    None of them is of use without the others: when one dies, so does the client, with a cause that names which, and the rest is killed.
    """

    own_process = True
    io_threads = 1

    def __init__(self, wiring: Wiring, *, log_to_terminal: bool = False) -> None:
        super().__init__(wiring.timing)
        self._wiring = wiring
        self._log_to_terminal = log_to_terminal
        self._codec: Codec = wiring.build_codec()
        self._hold: Hold | None = None
        self._within: Path | None = None

    # --- what a topology adds

    @abstractmethod
    def _entry(self, run_dir: RunDir) -> Spec:
        """What the child runs: a factory called with (reporter, run_dir path)."""

    def _helpers(self, run_dir: RunDir) -> Mapping[str, Spec]:
        """What other children run, by role; like ``_entry``. A hang of one that stamps its page is seen as the engine's is."""
        return {}

    @abstractmethod
    def _open_before(self, sockets: SocketSet[Any], run_dir: RunDir) -> None:
        """Open the sockets that must exist before the children do."""

    @abstractmethod
    async def _handshake(self, sockets: SocketSet[Any], run_dir: RunDir) -> ModelInfo:
        """Every child is ready: open the rest and learn what the engine is."""

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
        self._page = StatsPage.create(hold.run_dir.path / _page_name(ENGINE))
        hold.sockets = async_sockets(self._wiring.front_socket.build, io_threads=self.io_threads)
        self._open_before(hold.sockets, hold.run_dir)
        # Helpers first: they are quicker to load, and then they are there when the engine wants to speak to them.
        self._launch(hold, {**self._helpers(hold.run_dir), ENGINE: self._entry(hold.run_dir)})
        info = await self._become_ready(hold, hold.sockets)
        self._start_tasks(hold)
        return info

    def _launch(self, hold: Hold, entries: Mapping[str, Spec]) -> None:
        on_exit = weakref.WeakMethod(self._on_exit)
        for role, entry in entries.items():
            page = None if role == ENGINE else StatsPage.create(hold.run_dir.path / _page_name(role))
            child = launch(entry, hold.run_dir.path, role, log_to_terminal=self._log_to_terminal)
            hold.children.append(Watched(child, lambda one: call_weak(on_exit, one), page))

    async def _become_ready(self, hold: Hold, sockets: SocketSet[Any]) -> ModelInfo:
        handshake = hold.loop.create_task(self._ready_then_handshake(hold, sockets))
        try:
            await asyncio.wait({handshake, *hold.ends}, timeout=self.timing.start_timeout, return_when=asyncio.FIRST_COMPLETED)
            if not handshake.done():
                raise self._start_error(hold)
            try:
                return handshake.result()
            except Exception as error:
                raise EngineStartError(f"the handshake failed: {type(error).__name__}: {error}") from error
        finally:
            handshake.cancel()

    def _start_error(self, hold: Hold) -> EngineStartError | ConfigError | ModelError:
        ended = next((one for one in hold.children if one.ended.done()), None)
        if ended is None:
            limit = f"the engine was not ready within {self.timing.start_timeout:g} s (start_timeout)"
            return EngineStartError(f"{limit}; raise the limit if it was still loading", log_tail=log_tails(hold.run_dir.path))
        if ended.refusal is not None:
            return ended.refusal
        cause = ended.cause if ended.role == ENGINE else f"{ended.role}: {ended.cause}"
        # The child's own traceback is worth more than the end of its log, which repeats it.
        return EngineStartError(cause, ended.child.exit_code(), ended.traceback or ended.child.log_tail())

    async def _ready_then_handshake(self, hold: Hold, sockets: SocketSet[Any]) -> ModelInfo:
        await hold.until_ready()
        return await self._handshake(sockets, hold.run_dir)

    def _start_tasks(self, hold: Hold) -> None:
        watch = watch_loop(weakref.ref(self), self.timing.health_interval)
        for coroutine in [*self._receivers(), watch]:
            hold.tasks.append(hold.loop.create_task(coroutine))

    # --- what the children tell

    def _on_exit(self, one: Watched) -> None:
        hold = self._hold
        if hold is None:
            return
        # What it sent before it died may still lie in a socket, or be at a helper: the streams read that first.
        mourn = weakref.WeakMethod(self._mourn)
        hold.loop.call_later(_LAST_OUTPUTS_S * len(hold.children), lambda: call_weak(mourn, one))

    def _mourn(self, one: Watched) -> None:
        if self._stopped:
            return
        self._die(f"the {one.role} died: {one.cause}", one.traceback)
        self._end_hung()

    def lose(self, error: Exception) -> None:
        """A message could not be understood: what follows cannot be trusted."""
        self._die(f"a message of the engine could not be handled: {type(error).__name__}: {error}")
        self._end_hung()

    def _health(self) -> Health:
        health = super()._health()
        for one in self._children if health.ok else ():
            if (stopped_s := one.child.stopped_for()) > self.timing.stopped_limit:
                limit = f"the limit is {self.timing.stopped_limit:g} s (stopped_limit)"
                detail = f"the {one.role} process has been stopped (SIGSTOP) for {stopped_s:.1f} s, {limit}"
                return Health(state="hung", detail=detail, phase=health.phase, phase_age_s=health.phase_age_s)
            if one.page is not None and not (its := judge(one.page, self.timing, one.role)).ok:
                return its
        return health

    def _end_hung(self) -> None:
        for one in self._children:
            one.child.kill()

    @property
    def _children(self) -> list[Watched]:
        return self._hold.children if self._hold is not None else []

    @property
    def processes(self) -> dict[str, int]:
        """See BaseClient.processes; the engine goes first."""
        found = {one.role: one.child.pid for one in self._children}
        return {ENGINE: found[ENGINE], **found} if ENGINE in found else found

    @property
    def run_folder(self) -> Path | None:
        """See BaseClient.run_folder."""
        return self._hold.run_dir.path if self._hold is not None else None

    def log_tail(self) -> str:
        """See BaseClient.log_tail."""
        return log_tails(self._hold.run_dir.path) if self._hold is not None else ""

    # --- stop

    async def _stop(self) -> None:
        hold = self._hold
        if hold is None:
            return
        for one in hold.children:
            one.child.terminate()
        if hold.children:
            await asyncio.wait(hold.ends, timeout=self.timing.stop_grace)
        hold.release()
        if hold.tasks:
            await asyncio.wait(hold.tasks)
        if self._page is not None:
            self._page.close()
            self._page = None


class SocketClient(RemoteClient):
    """One whose commands go to a ZeroMQ socket."""

    @abstractmethod
    def _write(self, command: Command) -> asyncio.Future[Any]:
        """Hand a command to a socket; done when that has taken it. The future is the socket's to keep; a close cancels it."""

    async def _send(self, command: Command) -> None:
        await self._sent(self._write(command))

    def _post(self, command: Command) -> None:
        self._write(command)


def call_weak(method: weakref.WeakMethod[Any], one: Any) -> None:
    """Call a method of an object that may be gone."""
    strong = method()
    if strong is not None:
        strong(one)


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


def page_of(run_dir: Path, role: str = ENGINE) -> StatsPage:
    """The page of the engine whose run folder this is, or of a helper; for their side."""
    return StatsPage.open(run_dir / _page_name(role))


def _page_name(role: str) -> str:
    return PAGE if role == ENGINE else f"{role}.{PAGE}"
