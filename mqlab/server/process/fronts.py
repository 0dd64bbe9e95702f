"""Several front processes on one socket, launched, watched, started again and ended by this one.

The socket is this process's, and stays open while one of them is started again: whoever connects meanwhile is served by another, or waits
in it. What ran at one that died ends with its connections, and in the engine.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable
from dataclasses import dataclass

from mqlab.client.watched import Watched
from mqlab.config import ServerConfig
from mqlab.errors import FrontError
from mqlab.server.process.relaunch import Relaunch
from mqlab.server.process.signals import first
from mqlab.topologies.v1_fronts import OwnerClient
from mqlab.topologies.v1_seats import Seat
from mqlab.wire import siblings
from mqlab.wire.process import launch
from mqlab.wire.siblings import Siblings
from mqlab.wire.spec import Spec
from mqlab.wire.wiring import Wiring

logger = logging.getLogger("mqlab.server")

_CUT_S = 2.0
"""How long a front may take that is told to end: once while its streams may end by themselves, once when they are cut."""

_LOOK_S = 0.25


@dataclass(frozen=True)
class _Front:
    """One process and its seat at the engine."""

    index: int
    seat: Seat
    process: Watched


class Fronts:
    """The front processes of a server. See Serving. All methods on the client's loop.

    Args:
        client: started; the engine that the fronts share.
        listener: closed when no more connections are to be taken.
        wiring_of: what a front is wired with, by its role.
    """

    def __init__(self, client: OwnerClient, listener: socket.socket, server: ServerConfig, wiring_of: Callable[[str], Wiring]) -> None:
        assert client.run_folder is not None, "started clients only"
        self._client = client
        self._listener = listener
        self._server = server
        self._wiring_of = wiring_of
        self._run_folder = client.run_folder
        self._siblings = Siblings.create(self._run_folder / siblings.PAGE, server.api_server_count)
        self._running: dict[int, _Front] = {}
        self._keeping: list[asyncio.Task[None]] = []
        self._ending = asyncio.Event()

    async def start(self) -> None:
        """See Serving.start."""
        fronts = [self._launch(index) for index in range(self._server.api_server_count)]
        self._keeping = [asyncio.get_running_loop().create_task(self._keep(front)) for front in fronts]
        limit = self._client.timing.start_timeout
        await first(_all_ready(fronts), self.failed(), timeout=limit)
        if late := [front.process.role for front in fronts if not front.process.ready.is_set()]:
            raise FrontError(f"{', '.join(late)} not ready within {limit:g} s (start_timeout); raise the limit if the machine is that slow")

    async def failed(self) -> None:
        """See Serving.failed."""
        done, _ = await asyncio.wait(self._keeping, return_when=asyncio.FIRST_EXCEPTION)
        for task in done:
            task.result()

    async def refuse(self) -> None:
        """See Serving.refuse."""
        self._end()

    async def drained(self) -> None:
        """See Serving.drained."""
        await self._gone(None)

    async def stop(self) -> None:
        """See Serving.stop."""
        for _ in range(2):
            self._end()
            await self._gone(_CUT_S)
        for front in self._running.values():
            front.process.child.kill()
        await self._gone(None)
        self._siblings.close()

    def _end(self) -> None:
        """Tell every front to end; those that were told before, to end at once."""
        self._ending.set()
        self._listener.close()
        for front in self._running.values():
            front.process.child.terminate()

    async def _gone(self, seconds: float | None) -> None:
        if self._keeping:
            await asyncio.wait(self._keeping, timeout=seconds)

    async def _keep(self, front: _Front) -> None:
        """Have a front in its place until all are to end."""
        relaunch = Relaunch(front.process.role)
        await self._until_dead(front)
        if not front.process.ready.is_set() and not self._ending.is_set():
            raise FrontError(f"{front.process.role} did not start: {front.process.cause}")
        while not self._ending.is_set() and (await self._client.check()).ok:
            wait_s = relaunch.wait_after(front.process.cause)
            logger.warning("%s; what ran there is lost; it is started again", front.process.cause)
            await first(self._ending.wait(), timeout=wait_s)
            if not self._ending.is_set():
                front = self._launch(front.index)
                relaunch.launched()
                await self._until_dead(front)
        await self._ending.wait()

    def _launch(self, index: int) -> _Front:
        role = f"front-{index}"
        seat = self._client.seat()
        facts = {"wiring": self._wiring_of(role), "server": self._server, "seat": seat, "index": index, "listener": self._listener.fileno()}
        entry = Spec("mqlab.server.process.frontprocess:run", facts)
        child = launch(entry, self._run_folder, role, log_to_terminal=True, inherit=(self._listener.fileno(),))
        front = self._running[index] = _Front(index, seat, Watched(child, lambda one: None))
        self._client.fronts[role] = child.pid
        return front

    async def _until_dead(self, front: _Front) -> None:
        """The life of a front, which ends when it hangs, too; what it leaves is cleared away."""
        process = front.process
        while not process.ended.done():
            if why := self._sick(front):
                logger.warning("%s %s; it is killed", process.role, why)
                process.child.kill()
            await asyncio.wait({process.ended}, timeout=_LOOK_S)
        # Its number of connections and requests goes first: the others may take what comes.
        self._siblings.clear(front.index)
        self._client.unseat(front.seat)
        process.release()
        del self._running[front.index], self._client.fronts[process.role]

    def _sick(self, front: _Front) -> str:
        """Why a front is of no use though it lives; empty where nothing is known against it."""
        timing = self._client.timing
        if front.process.child.stopped_for() > timing.stopped_limit:
            return f"has been stopped (SIGSTOP) for more than {timing.stopped_limit:g} s (stopped_limit)"
        if self._siblings.silent_s(front.index) > timing.step_limit:
            return f"has hung for more than {timing.step_limit:g} s (step_limit)"
        return ""


async def _all_ready(fronts: list[_Front]) -> None:
    for front in fronts:
        await front.process.ready.wait()
