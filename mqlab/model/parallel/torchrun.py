"""Ranks that torchrun has started, on one machine or on several.

    torchrun --nnodes N --nproc-per-node M -m mqlab serve MODEL --tensor-parallel-size N*M

Every process runs the same command. That of rank 0 serves, and its engine is rank 0 of the model; the others wait for it, work for it,
one model after the other, and end with it. The engine listens at MASTER_ADDR and says in torchrun's store on which port; whoever knows what
else is written there may come. Like torch.distributed itself this is for hosts that trust their network.
"""

from __future__ import annotations

import os
import secrets
import select
import signal
import socket
import threading
from datetime import timedelta
from functools import cache

import msgspec
from torch._C._distributed_c10d import PrefixStore, Store, TCPStore

from mqlab.config import EngineConfig, Torchrun, check_ranks
from mqlab.errors import ConfigError, MqlabError, RankDied
from mqlab.model.parallel.messages import Answer, Hello, Line, Order
from mqlab.model.parallel.peers import Peer
from mqlab.model.parallel.place import Place
from mqlab.model.parallel.ranks import Ranks
from mqlab.model.parallel.worker import Worker
from mqlab.model.parallel.workers import Workers
from mqlab.wire.tracing import allow_tracing

_DOOR = "mqlab-door"
_COME_LIMIT_S = 600.0
"""For all ranks to come to rank 0, whose engine has started by then, and for the others to find its door."""

_PROBE_S = 15
"""How often a silent connection between hosts is tried: a host that lost its power says nothing."""


class _Door(msgspec.Struct, frozen=True):
    """Where rank 0 listens, and what to say there."""

    port: int
    token: str


def remote_ranks(config: EngineConfig, torchrun: Torchrun) -> Ranks:
    """The other ranks as rank 0 sees them; they stay when a model goes.

    Raises:
        ConfigError: there are more or fewer of them than ``config`` says, or one did not come; or this is none that serves.
        RankDied: one has not come back from the model before.
    """
    check_ranks(config, torchrun)
    if torchrun.rank > 0:
        raise ConfigError(f"RANK={torchrun.rank}: under torchrun rank 0 alone has an engine; start 'mqlab serve' with it, and nothing else")
    store, peers = _gathered(torchrun)
    if gone := [one.name for one in peers if one.line.closed]:
        raise RankDied(f"{', '.join(gone)} did not end what it did for the model before; start torchrun again")
    return Ranks(Workers(lambda: [Peer(one.rank, one.line, hello=one.hello) for one in peers]), _place(torchrun), store)


def work(torchrun: Torchrun) -> int:
    """Be one of the other ranks until rank 0 ends.

    Returns:
        0, the exit status.

    Raises:
        MqlabError: rank 0 did not come.
    """
    allow_tracing()
    store = _store(torchrun)
    line = _line_to_first(torchrun, store)
    # torchrun sends these to all its processes at once: rank 0 stops in good order, and this one with it.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    worker = Worker(line, _place(torchrun), store)
    threading.Thread(target=_end_with_first, args=(line, worker), name="mqlab-first", daemon=True).start()
    worker.serve()
    return 0


def _end_with_first(line: Line, worker: Worker) -> None:
    """A thread: whoever waits for rank 0 on a GPU does not see by itself that it is gone."""
    poll = select.poll()
    poll.register(line.fileno(), getattr(select, "POLLRDHUP", 0))  # elsewhere than on Linux a line that breaks is told as well
    poll.poll()
    worker.abort()


def _place(torchrun: Torchrun) -> Place:
    return Place(torchrun.rank, torchrun.world_size, torchrun.local_rank, torchrun.local_world_size)


def _store(torchrun: Torchrun) -> Store:
    limit = timedelta(seconds=_COME_LIMIT_S)
    address = torchrun.master_addr, torchrun.master_port
    store = TCPStore(*address, torchrun.world_size, torchrun.hosts_store and torchrun.rank == 0, limit, wait_for_workers=False)
    return PrefixStore(f"mqlab-{torchrun.attempt}", store)


@cache
def _gathered(torchrun: Torchrun) -> tuple[Store, list[Peer]]:
    """The store, and the ranks that have come: once in the life of the process."""
    store, token = _store(torchrun), secrets.token_hex(16)
    with socket.create_server((_address(torchrun), 0)) as door:
        store.set(_DOOR, msgspec.json.encode(_Door(door.getsockname()[1], token)).decode())
        door.settimeout(_COME_LIMIT_S)
        peers: dict[int, Peer] = {}
        while missing := set(range(1, torchrun.world_size)) - peers.keys():
            try:
                peer = _welcome(door.accept()[0], token)
            except TimeoutError as error:
                late = f"ranks {sorted(missing)} did not come within {_COME_LIMIT_S:g} s"
                raise ConfigError(f"{late}; start torchrun on every host, with the same command") from error
            if peer is not None and peer.rank in missing:
                peers[peer.rank] = peer
    return store, list(peers.values())


def _welcome(end: socket.socket, token: str) -> Peer | None:
    """Whoever has come; None where it is none of the ranks."""
    _keep_alive(end)
    line = Line(end, Answer)
    try:
        hello = line.receive()
    except msgspec.MsgspecError:
        hello = None
    if isinstance(hello, Hello) and secrets.compare_digest(hello.token, token):
        return Peer(hello.rank, line, hello=hello)
    line.close()
    return None


def _line_to_first(torchrun: Torchrun, store: Store) -> Line:
    try:
        door = msgspec.json.decode(store.get(_DOOR), type=_Door)
        end = socket.create_connection((torchrun.master_addr, door.port))
    except (RuntimeError, OSError) as error:
        raise MqlabError(f"rank {torchrun.rank} found no engine at {torchrun.master_addr}: {error}") from error
    _keep_alive(end)
    line = Line(end, Order)
    line.send(Hello(torchrun.rank, os.getpid(), socket.gethostname(), door.token))
    return line


def _address(torchrun: Torchrun) -> str:
    """Where rank 0 listens: the name by which the others know it, where that is an address of this machine."""
    try:
        with socket.create_server((torchrun.master_addr, 0)):
            return torchrun.master_addr
    except OSError:
        return ""


def _keep_alive(end: socket.socket) -> None:
    end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    end.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (("TCP_KEEPIDLE", _PROBE_S), ("TCP_KEEPINTVL", _PROBE_S), ("TCP_KEEPCNT", 3)):
        if hasattr(socket, name):  # not all of them are everywhere
            end.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
