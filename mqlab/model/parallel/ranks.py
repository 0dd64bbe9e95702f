"""The ranks of this machine alone: rank 0 launches the others, and they end with it."""

from __future__ import annotations

import socket
import time
from dataclasses import dataclass

from torch._C._distributed_c10d import Store

from mqlab.model.parallel.messages import Answer, Line
from mqlab.model.parallel.peers import Peer
from mqlab.model.parallel.place import Place, local_store
from mqlab.model.parallel.workers import Workers
from mqlab.wire.process import RANK, launch
from mqlab.wire.rundir import RunDir
from mqlab.wire.spec import Spec

ENTRY = "mqlab.model.parallel.worker:run_rank"
"""What a rank's process runs."""


@dataclass(frozen=True)
class Ranks:
    """What rank 0 needs to open a model on all of them.

    Attributes:
        workers: the other ranks.
        place: of this one.
        store: where all of them find each other.
    """

    workers: Workers
    place: Place
    store: Store


def local_ranks(size: int) -> Ranks:
    """Ranks 1 to ``size`` - 1 as new processes, in a run folder of their own.

    Raises:
        OSError: one could not be launched.
    """
    run_dir = RunDir()

    def open_peers() -> list[Peer]:
        peers: list[Peer] = []
        try:
            for rank in range(1, size):
                peers.append(_launch(rank, size, run_dir))
        except BaseException:
            for peer in peers:
                peer.end(time.monotonic())
            run_dir.remove()
            raise
        return peers

    return Ranks(Workers(open_peers, run_dir.remove), Place(0, size, 0, size), local_store(run_dir.path, size))


def _launch(rank: int, size: int, run_dir: RunDir) -> Peer:
    here, there = socket.socketpair()
    with there:
        fd = there.fileno()
        entry = Spec(ENTRY, {"rank": rank, "size": size, "fd": fd})
        child = launch(entry, run_dir.path, f"{RANK}{rank}", inherit=(fd,))
    return Peer(rank, Line(here, Answer), child)
