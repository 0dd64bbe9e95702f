"""A rank that is not the first: it opens its share of a model, and runs every plan that rank 0 runs, in the same order."""

from __future__ import annotations

import logging
import os
import socket
import traceback
from collections import deque
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from torch._C._distributed_c10d import PrefixStore, Store

from mqlab.config import EngineConfig
from mqlab.errors import REFUSALS
from mqlab.model.load import build, foresee
from mqlab.model.making import Alone
from mqlab.model.parallel.group import PeerLost, TorchGroup
from mqlab.model.parallel.messages import Build, Close, Closed, Connect, Done, Failed, Hello, Line, Order, Refused, Rest, Resume, Run
from mqlab.model.parallel.place import Place, local_store
from mqlab.plan import InFlight, Plan, Runner
from mqlab.wire.report import Reporter

logger = logging.getLogger("mqlab.model")


_AHEAD = 1
"""Steps that may be in flight while the next order is waited for: as many as at rank 0, where two are in flight at most."""


class RankFlight(InFlight, Protocol):
    """A launched step of a rank.

    Attributes:
        enqueued: whether the device has all of it; else ``wait`` does a part, with collectives in it.
    """

    @property
    def enqueued(self) -> bool:
        """See above."""
        ...


class RankRunner(Runner, Protocol):
    """What a rank runs plans with."""

    def launch(self, plan: Plan) -> RankFlight:
        """Start one step."""
        ...


class Worker:
    """One of the other ranks.

    Args:
        line: to rank 0.
        place: which rank this is.
        store: where the ranks find each other.
    """

    def __init__(self, line: Line, place: Place, store: Store) -> None:
        self._line = line
        self._place = place
        self._store = store
        self._config: EngineConfig | None = None
        self._group: TorchGroup | None = None
        self._runner: RankRunner | None = None
        self._flights: deque[RankFlight] = deque()

    def abort(self) -> None:
        """End what waits for another rank; from any thread."""
        if self._group is not None:
            self._group.abort()

    def serve(self) -> None:
        """Do as rank 0 says, until it says nothing more.

        Raises:
            whatever this rank fails of, which rank 0 is told.
        """
        try:
            while (order := self._line.receive()) is not None:
                _ON_ORDER[type(order)](self, order)
        except Exception as error:
            try:
                self._fail(error)
            except OSError:
                logger.info("rank 0 is gone")
                return
            raise

    def _build(self, order: Build) -> None:
        self._config = order.config
        self._answer(partial(self._find, order.config))

    def _find(self, config: EngineConfig) -> None:
        self._place.check(config)
        foresee(config, Alone(self._place.rank, self._place.size))

    def _connect(self, order: Connect) -> None:
        assert self._config is not None, "Build comes first"
        try:
            self._group = self._place.meet(PrefixStore(order.key, self._store), self._config)
            self._runner = build(self._config, self._group)
        except (*REFUSALS, PeerLost) as error:
            self._fail(error)  # and stay: rank 0 may have another model, or the same with less memory

    def _fail(self, error: Exception) -> None:
        """Tell rank 0, and then those who wait for this rank."""
        refused = Refused.of(error) if isinstance(error, REFUSALS) and self._runner is None else None
        self._line.send(Failed(f"{type(error).__name__}: {error}", traceback.format_exc(), isinstance(error, PeerLost), refused))
        if self._group is not None:
            self._group.close()

    def _run(self, order: Run) -> None:
        flight = self._open.launch(order.plan)
        self._flights.append(flight)
        # What a step leaves for its wait is done now: rank 0 waits there for this rank, and gives no order before.
        self._wait_for_all_but(_AHEAD if flight.enqueued else 0)

    def _wait_for_all_but(self, count: int) -> None:
        while len(self._flights) > count:
            self._flights.popleft().wait()

    def _rest(self, order: Rest) -> None:
        self._wait_for_all_but(0)
        self._open.rest()

    def _resume(self, order: Resume) -> None:
        self._answer(self._open.resume)

    @property
    def _broken(self) -> bool:
        """Whether a collective was left in its midst."""
        return self._group is not None and self._group.closed

    def _close(self, order: Close) -> None:
        if self._group is not None:
            self._group.close()
        if self._runner is not None:
            self._runner.close()
        self._runner = self._group = None
        self._flights.clear()
        self._line.send(Closed())

    @property
    def _open(self) -> RankRunner:
        assert self._runner is not None, "rank 0 runs what it has opened"
        return self._runner

    def _answer(self, work: Callable[[], object]) -> None:
        try:
            work()
        except REFUSALS as error:
            if self._broken:  # others wait in a collective, and are to be told
                raise
            self._line.send(Refused.of(error))
        else:
            self._line.send(Done())


_ON_ORDER: dict[type[Any], Callable[[Worker, Any], None]] = {
    Build: Worker._build,
    Connect: Worker._connect,
    Run: Worker._run,
    Rest: Worker._rest,
    Resume: Worker._resume,
    Close: Worker._close,
}


def run_rank(reporter: Reporter, run_dir: Path, *, rank: int, size: int, fd: int) -> None:
    """The process of a rank that rank 0 has launched on its own machine."""
    del reporter  # what is to be said is said on the line
    line = Line(socket.socket(fileno=fd), Order)
    place = Place(rank, size, rank, size)
    line.send(Hello(rank, os.getpid(), socket.gethostname()))
    Worker(line, place, local_store(run_dir, size)).serve()
