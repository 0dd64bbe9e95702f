"""Clients of a front process: its engine, seen through the front's private socket.

    this process                          front process                      engine
      HttpClient ── POST /channel ──────►  client of any layout  ── … ──►    (may be the front itself)
                 ◄── events, one response

``HttpClient`` attaches to a front that somebody else runs, and leaving it only detaches. ``FrontClient`` launches one of its own.
"""

from __future__ import annotations

import asyncio
import weakref
from pathlib import Path
from typing import Any

import msgspec

from mqlab.client.background import watch_loop
from mqlab.client.base import BaseClient
from mqlab.client.channel import Channel
from mqlab.client.remote import RemoteClient
from mqlab.config import Timing
from mqlab.errors import EngineStartError
from mqlab.types import Command, Event, Health, ModelInfo, Shape
from mqlab.wire.native import SOCKET, FrontInfo
from mqlab.wire.process import StopWatch, log_tails
from mqlab.wire.ranks import with_ranks
from mqlab.wire.rundir import RunDir
from mqlab.wire.sockets import SocketSet
from mqlab.wire.spec import Spec
from mqlab.wire.statspage import StatsPage
from mqlab.wire.wiring import Wiring

_PATIENCE_S = 1.0
"""How long the kernel may take to say how a child ended, once its connection has."""


class FrontSide(BaseClient):
    """What both share: a channel, and the page of the engine behind it.

    Attributes:
        front: what the front said of itself; None before the start.
    """

    front: FrontInfo | None = None
    _channel: Channel | None = None

    async def _send(self, command: Command) -> None:
        self._post(command)
        # Like every other layout, a call or request lets the rest of the loop run.
        await asyncio.sleep(0)

    def _post(self, command: Command) -> None:
        if self._channel is not None:
            self._channel.post(command)

    @property
    def pids(self) -> dict[str, int]:
        """See BaseClient.pids: as the front tells them."""
        return with_ranks(self.front.pids) if self.front is not None else {}

    def _take_info(self, info: ModelInfo) -> None:
        super()._take_info(info)
        if self.front is not None:
            self.front = msgspec.structs.replace(self.front, model=info)

    def deliver(self, event: Event) -> None:
        """Take what the front sent."""
        self._deliver(event)

    def cut_off(self, cause: str) -> None:
        """The front sends nothing any more."""
        self._die(cause)
        self._end_hung()

    def _adopt(self, info: FrontInfo) -> ModelInfo:
        """Know the front, and look at its engine's page from now on."""
        before, self._page = self._page, StatsPage.open(Path(info.page))
        if before is not None:
            before.close()
        self.front, self.shape = info, info.shape
        return info.model


class HttpClient(FrontSide):
    """Attached to a front process of this machine. Closing it aborts its own requests and leaves everything else running.

    Args:
        address: path of the front's socket, as the registry has it.
        timing: how often to look, and what counts as a hang.
    """

    def __init__(self, address: str | Path, timing: Timing | None = None) -> None:
        super().__init__(timing or Timing())
        self.shape = Shape("http", processes=(("front", ("event loop",)),))
        self._address = Path(address)
        self._tasks: list[asyncio.Task[None]] = []
        self._stops: StopWatch | None = None

    async def _start(self) -> ModelInfo:
        self._channel = Channel(self._address)
        self._begin(self._channel.attend(weakref.ref(self)))
        # A front whose loop is in a long step answers after it.
        limit = min(self.timing.start_timeout, self.timing.step_limit)
        try:
            async with asyncio.timeout(limit):
                info = await self._channel.info
            model = self._adopt(info)
        except TimeoutError as error:
            raise EngineStartError(f"the front process at {self._address} did not answer within {limit:g} s; is it stuck?") from error
        except OSError as error:
            raise EngineStartError(f"{error}; is it still running?") from error
        self._stops = StopWatch(info.pid)
        self._begin(watch_loop(weakref.ref(self), self.timing.health_interval))
        return model

    def _begin(self, work: Any) -> None:
        loop = asyncio.get_running_loop()
        task: asyncio.Task[None] = loop.create_task(work)
        self._tasks.append(task)
        weakref.finalize(self, _cancel, loop, task)

    @property
    def run_folder(self) -> Path | None:
        """See BaseClient.run_folder."""
        return Path(self.front.page).parent if self.front is not None else None

    def _health(self) -> Health:
        health = super()._health()
        stopped_s = self._stops.stopped_for() if self._stops is not None else 0.0
        if health.ok and stopped_s > self.timing.stopped_limit:
            limit = f"the limit is {self.timing.stopped_limit:g} s (stopped_limit)"
            return Health(state="hung", detail=f"the front process has been stopped (SIGSTOP) for {stopped_s:.1f} s, {limit}")
        return health

    def log_tail(self) -> str:
        """See BaseClient.log_tail."""
        return log_tails(self.run_folder) if self.run_folder is not None else ""

    async def _stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        if self._page is not None:
            self._page.close()
            self._page = None


class FrontClient(FrontSide, RemoteClient):
    """Launches a front process with an engine client of any layout in it: for layouts whose engine would be this process.

    Args:
        topology: layout between front and engine.
        wiring: what it is wired with, in the front process and behind it.
        preset: of the topology.
        options: of the topology.
        openai: the front serves OpenAI's routes on a free port of 127.0.0.1 as well, where its model has a tokenizer.
        recording: folder that the front and its engine record into, if any.
        log_to_terminal: the front writes its log to this process's terminal, not to a file.
    """

    def __init__(
        self,
        topology: str,
        wiring: Wiring,
        *,
        preset: str = "best",
        options: dict[str, Any] | None = None,
        openai: bool = True,
        recording: Path | None = None,
        log_to_terminal: bool = False,
    ) -> None:
        super().__init__(wiring, log_to_terminal=log_to_terminal)  # not the recorded one: this process is not what is measured
        self.shape = Shape(topology, processes=(("front", ("event loop",)),))
        inner = wiring if recording is None else wiring.recorded(recording)
        layout = {"topology": topology, "preset": preset, "options": options or {}}
        self._front = Spec("mqlab.server.process.front:run", {**layout, "wiring": inner, "openai": openai, "recording": recording})

    def _entry(self, run_dir: RunDir) -> Spec:
        run_dir.ipc(SOCKET)  # refuses a path that is too long for a socket
        return self._front

    def _open_before(self, sockets: SocketSet[Any], run_dir: RunDir) -> None:
        """Nothing: the front listens."""

    async def _handshake(self, sockets: SocketSet[Any], run_dir: RunDir) -> ModelInfo:
        assert self._hold is not None
        self._channel = Channel(run_dir.path / SOCKET, patience=_PATIENCE_S)
        self._hold.tasks.append(self._hold.loop.create_task(self._channel.attend(weakref.ref(self))))
        return self._adopt(await self._channel.info)

    def _receivers(self) -> list[Any]:
        return []


def _cancel(loop: asyncio.AbstractEventLoop, task: asyncio.Task[None]) -> None:
    if not loop.is_closed():
        loop.call_soon_threadsafe(task.cancel)
