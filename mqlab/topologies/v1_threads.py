"""The engine's process under several fronts: the two IO threads of the V1 layout, each with a socket for every front.

The input thread learns who comes and goes; the output thread is told by a queue, and sees to it before its next event.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import zmq

from mqlab.client.remote import page_of
from mqlab.engine.service import Service
from mqlab.topologies.iothreads import serve
from mqlab.topologies.v1 import RANK
from mqlab.topologies.v1_seats import Join, Leave, Told
from mqlab.types import Abort, Command, Dead, Event, Model, ModelInfo
from mqlab.wire.report import Reporter
from mqlab.wire.sockets import SocketSet, sync_sockets
from mqlab.wire.wiring import Wiring

_Socket = zmq.Socket[bytes]
_Changes = SimpleQueue[Join | Leave]


class Readers:
    """A DEALER for every front. All in the input thread.

    Args:
        info: what the engine is, as of now.
        changes: is given who comes and goes.
    """

    def __init__(self, wiring: Wiring, info: Callable[[], ModelInfo], changes: _Changes) -> None:
        codec = wiring.build_codec()
        self._encode, self._decode = codec.encode, codec.decoder(Told)
        self._info = info
        self._changes = changes
        self._set = sync_sockets(wiring.engine_socket.build)
        self._poller = zmq.Poller()
        self._sockets: dict[int, _Socket] = {}

    def join(self, seat: Join) -> None:
        """Say to a front what the engine is, and read what it sends from now on."""
        # The other thread knows first: neither the front's first request nor a change of what is said here can have an event too early.
        self._changes.put(seat)
        socket = self._sockets[seat.client] = self._set.connect("dealer", seat.input, identity=RANK)
        self._poller.register(socket, zmq.POLLIN)
        socket.send(self._encode(self._info()))

    def leave(self, seat: Leave) -> Abort:
        """Read nothing of a front any more; what ends its requests, behind all that it sent."""
        self._changes.put(seat)
        if (socket := self._sockets.pop(seat.client, None)) is not None:
            self._poller.unregister(socket)
            self._set.close_socket(socket)
        return Abort(None, seat.client)

    def commands(self) -> Iterator[Command]:
        """What arrives, for ever. One message of each front in turn: one that sends much does not keep the others waiting."""
        while True:
            for socket, _ in self._poller.poll():
                if not socket.closed:  # as that of a front is of which another one's message said, in this turn, that it left
                    yield from self._take(self._decode(socket.recv()))

    def _take(self, told: Any) -> Iterator[Command]:
        if type(told) is Join:
            self.join(told)
        elif type(told) is Leave:
            yield self.leave(told)
        else:
            yield told


class Writers:
    """A PUSH to every front. All in the output thread.

    Args:
        changes: says who comes and goes.
    """

    def __init__(self, wiring: Wiring, changes: _Changes) -> None:
        self._encode = wiring.build_codec().encode
        self._changes = changes
        self.set: SocketSet[Any] = sync_sockets(wiring.engine_socket.build)
        self._sockets: dict[int, _Socket] = {}

    def send(self, event: Event) -> None:
        """An event to its front, or to all; one of a front that left goes nowhere."""
        while not self._changes.empty():
            self._change(self._changes.get())
        frame = self._encode(event)
        if isinstance(event, Dead | Model):
            for socket in self._sockets.values():
                socket.send(frame)
        elif (socket := self._sockets.get(event.client)) is not None:
            socket.send(frame)

    def _change(self, seat: Join | Leave) -> None:
        if type(seat) is Join:
            self._sockets[seat.client] = self.set.connect("push", seat.output)
        elif (socket := self._sockets.pop(seat.client, None)) is not None:
            self.set.close_socket(socket)


def _inlet(service: Service, wiring: Wiring, changes: _Changes, first: Join) -> Iterator[Command]:
    readers = Readers(wiring, lambda: service.info, changes)
    readers.join(first)
    return readers.commands()


def _outlet(wiring: Wiring, changes: _Changes) -> tuple[SocketSet[Any], Callable[[Event], object]]:
    writers = Writers(wiring, changes)
    return writers.set, writers.send


def run_engine(reporter: Reporter, run_dir: Path, *, wiring: Wiring, first: Join) -> None:
    """The engine process: build the core, connect to the launcher, say what it is, serve whoever takes a seat."""
    service = Service(wiring.build_core(), page_of(run_dir), wiring.log_stats_interval)
    changes: _Changes = SimpleQueue()
    inlet, outlet = partial(_inlet, service, wiring, changes, first), partial(_outlet, wiring, changes)
    serve(service, wiring.timing.idle_interval, reporter, inlet, outlet)
