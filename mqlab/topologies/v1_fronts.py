"""The clients of a V1 engine core that several front processes share: the launcher's, which owns it, and that of each front."""

from __future__ import annotations

import asyncio
import itertools
import os
import shutil
import weakref
from pathlib import Path
from typing import Any

import msgspec

from mqlab.client.background import watch_loop
from mqlab.client.mailbox import Mailbox
from mqlab.client.remote import feed
from mqlab.topologies.v1 import PRESETS, RANK, Options, V1Client
from mqlab.topologies.v1_seats import OWN, Join, Leave, Seat
from mqlab.types import Command, Delta, ModelInfo, Request
from mqlab.wire.native import LAUNCHER
from mqlab.wire.ranks import with_ranks
from mqlab.wire.rundir import RunDir
from mqlab.wire.siblings import Siblings
from mqlab.wire.sockets import SocketSet, async_sockets
from mqlab.wire.spec import Spec
from mqlab.wire.statspage import PAGE, StatsPage
from mqlab.wire.wiring import Wiring


class OwnerClient(V1Client):
    """The launcher's: an ordinary client of the engine, which it owns, and which it has serve others as well.

    Attributes:
        fronts: process ids of the front processes by role; kept by whoever launches them.
    """

    def __init__(self, wiring: Wiring, options: Options = PRESETS["best"], *, log_to_terminal: bool = False) -> None:
        super().__init__(wiring, options, log_to_terminal=log_to_terminal)
        self._numbers = itertools.count(OWN + 1)
        self._notices: dict[int, Any] = {}
        self.fronts: dict[str, int] = {}

    def _entry(self, run_dir: RunDir) -> Spec:
        own = Join(OWN, run_dir.ipc("input"), run_dir.ipc("output"))
        return Spec("mqlab.topologies.v1_threads:run_engine", {"wiring": self._wiring, "first": own})

    def seat(self) -> Seat:
        """A place for a new front. The engine connects to it as soon as the front has bound its sockets.

        Raises:
            ConfigError: the path of a socket is too long.
        """
        run_dir, sockets = self._taken()
        client = next(self._numbers)
        places = {name: run_dir.ipc(f"{_name(client)}/{name}") for name in ("input", "output", "notice")}
        (run_dir.path / _name(client)).mkdir()
        self._notices[client] = sockets.connect("push", places["notice"])
        self._tell(Join(client, places["input"], places["output"]))
        return Seat(client, **places, page=str(run_dir.path / PAGE))

    def unseat(self, seat: Seat) -> None:
        """A front is gone: its requests end, and its place with it."""
        run_dir, sockets = self._taken()
        if self._alive:
            self._tell(Leave(seat.client))
        sockets.close_socket(self._notices.pop(seat.client))
        shutil.rmtree(run_dir.path / _name(seat.client), ignore_errors=True)

    @property
    def pids(self) -> dict[str, int]:
        """See BaseClient.pids."""
        return with_ranks({LAUNCHER: os.getpid(), "engine": self.info.pid, **self.processes, **self.fronts})

    def _taken(self) -> tuple[RunDir, SocketSet[Any]]:
        assert self._hold is not None and self._hold.sockets is not None, "started clients only"
        return self._hold.run_dir, self._hold.sockets

    def _tell(self, told: Join | Leave) -> None:
        self._input.send_multipart([RANK, self._codec.encode(told)])

    def _die(self, cause: str, traceback: str = "") -> None:
        known = self._dead
        super()._die(cause, traceback)
        if known is None and not self._stopped:
            frame = self._codec.encode(self._dead)
            for notice in self._notices.values():
                notice.send(frame)


class AttachedClient(V1Client):
    """A front's: of an engine that the launcher owns. Closing it gives up the front's place and leaves the engine running.

    It judges the engine by its page, and is told by the launcher how it ended.

    Args:
        siblings: where it tells the other fronts how many requests it has open, which count against its limits as their own do against
            theirs.
    """

    def __init__(self, wiring: Wiring, seat: Seat, siblings: Siblings, options: Options = PRESETS["best"]) -> None:
        super().__init__(wiring, options)
        self._seat = seat
        self._siblings = siblings
        self._handed = 0
        self._sockets: SocketSet[Any] | None = None
        self._tasks: list[asyncio.Task[None]] = []

    async def _start(self) -> ModelInfo:
        seat = self._seat
        self._page = StatsPage.open(Path(seat.page))
        sockets = self._sockets = async_sockets(self._wiring.front_socket.build, io_threads=self.io_threads)
        self._input = sockets.bind("router", seat.input)
        self._output = sockets.bind("pull", seat.output)
        notice = sockets.bind("pull", seat.notice)
        _, frame = await self._input.recv_multipart()
        watch = watch_loop(weakref.ref(self), self.timing.health_interval)
        for work in (*self._receivers(), feed(weakref.ref(self), notice, V1Client.on_event), watch):
            self._tasks.append(asyncio.get_running_loop().create_task(work))
        return self._codec.info(frame)

    def _write(self, command: Command) -> asyncio.Future[Any]:
        return super()._write(msgspec.structs.replace(command, client=self._seat.client))

    async def hand_over(self, request: Request, slot: Mailbox) -> None:
        """See BaseClient.hand_over."""
        self._note(1)
        await super().hand_over(request, slot)

    def leave(self, request: Request, last: Delta | None) -> None:
        """See BaseClient.leave."""
        self._note(-1)
        super().leave(request, last)

    def _note(self, more: int) -> None:
        self._handed += more
        self._siblings.note_requests(self._handed)

    @property
    def open(self) -> int:
        """See BaseClient.open."""
        return len(self.streams) + self._siblings.other_requests()

    @property
    def run_folder(self) -> Path | None:
        """See BaseClient.run_folder."""
        return Path(self._seat.page).parent

    async def _stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        if self._sockets is not None:
            self._sockets.close()
        if self._page is not None:
            self._page.close()
            self._page = None


def _name(client: int) -> str:
    return f"f{client}"
