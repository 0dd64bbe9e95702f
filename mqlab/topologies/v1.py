"""The V1 engine core: a busy loop between two IO threads, two sockets.

    front process (asyncio)                      engine process
      ROUTER (bind) ── request, abort, call ──►  DEALER   input thread ─► queue ─┐
                                                          main thread: busy loop  │
      PULL (bind)  ◄── one message a step ─────  PUSH     output thread ◄─ queue ┘

Reproduces: vLLM V1's AsyncLLM + EngineCore (PR 9289 onwards): decoding and encoding leave the engine's loop, input arrives while
the device runs, the front works off large steps in chunks so that streams stay even (PR 12287), and what a reader has not read yet is
merged (PR 15156). Leaves out: the type byte of a request (the message's own tag tells), the handshake's socket (readiness is told on a
pipe), data-parallel coordination, out-of-band tensors, buffers that are used again.

Several front processes may share one core: v1_seats.

The historical preset is that of January 2025, when a third process was tried beside it (PR 11636): before both of these.
"""

from __future__ import annotations

import asyncio
import struct
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from mqlab.client.queue import Queue
from mqlab.client.remote import SocketClient, feed, page_of
from mqlab.client.slot import Slot
from mqlab.client.streams import Streams
from mqlab.engine.service import Service
from mqlab.topologies.iothreads import serve
from mqlab.types import Command, Edge, Event, ModelInfo, Shape, Step
from mqlab.wire.report import Reporter
from mqlab.wire.rundir import RunDir
from mqlab.wire.sockets import SocketSet, sync_sockets
from mqlab.wire.spec import Spec
from mqlab.wire.wiring import Wiring

RANK = struct.pack("<H", 0)
"""The engine's identity."""


@dataclass(frozen=True)
class Options:
    """What can be chosen.

    Attributes:
        chunk: deltas that the front works off before it lets its streams run; 0 works off a whole step at once.
        slot: what a reader has not read yet is merged into one delta; off, it queues up, a delta for each step.
    """

    chunk: int = 128
    slot: bool = True


PRESETS = {"historical": Options(chunk=0, slot=False), "best": Options()}


class V1Client(SocketClient):
    """The front's side."""

    io_threads = 2
    shape = Shape(
        "v1",
        processes=(("front", ("event loop",)), ("engine", ("engine loop", "input", "output"))),
        edges=(
            Edge("front", "engine", "ROUTER→DEALER", "requests, aborts, calls", "input"),
            Edge("engine", "front", "PUSH→PULL", "one message a step", "output"),
        ),
    )

    def __init__(self, wiring: Wiring, options: Options = PRESETS["best"], *, log_to_terminal: bool = False) -> None:
        super().__init__(wiring, log_to_terminal=log_to_terminal)
        self._options = options
        self.streams = Streams(Slot if options.slot else Queue)

    def _entry(self, run_dir: RunDir) -> Spec:
        addresses = {"input_address": run_dir.ipc("input"), "output_address": run_dir.ipc("output")}
        return Spec("mqlab.topologies.v1:run_engine", {"wiring": self._wiring, **addresses})

    def _open_before(self, sockets: SocketSet[Any], run_dir: RunDir) -> None:
        self._input = sockets.bind("router", run_dir.ipc("input"))
        self._output = sockets.bind("pull", run_dir.ipc("output"))

    async def _handshake(self, sockets: SocketSet[Any], run_dir: RunDir) -> ModelInfo:
        # A ROUTER can only address a peer that has spoken: the engine's first word carries what it is.
        _, frame = await self._input.recv_multipart()
        return self._codec.info(frame)

    def _receivers(self) -> list[Any]:
        return [feed(weakref.ref(self), self._output, V1Client.on_event)]

    def _write(self, command: Command) -> asyncio.Future[Any]:
        return self._input.send_multipart([RANK, self._codec.encode(command)])

    async def on_event(self, frame: bytes) -> None:
        """One message of the output socket, a large step in chunks."""
        event = self._codec.event(frame)
        chunk = self._options.chunk
        if type(event) is not Step or not 0 < chunk < len(event.deltas):
            self._deliver(event)
            return
        for start in range(0, len(event.deltas), chunk):
            self._deliver(Step(event.deltas[start : start + chunk], event.client))
            await asyncio.sleep(0)


def _commands(address: str, wiring: Wiring, info: ModelInfo) -> Iterator[Command]:
    """Say what the engine is, then give what arrives."""
    codec = wiring.build_codec()
    socket = sync_sockets(wiring.engine_socket.build).connect("dealer", address, identity=RANK)
    socket.send(codec.encode(info))
    while True:
        yield codec.command(socket.recv())


def _outlet(address: str, wiring: Wiring) -> tuple[SocketSet[Any], Callable[[Event], object]]:
    codec = wiring.build_codec()
    sockets = sync_sockets(wiring.engine_socket.build)
    socket = sockets.connect("push", address)
    return sockets, lambda event: socket.send(codec.encode(event))


def run_engine(reporter: Reporter, run_dir: Path, *, wiring: Wiring, input_address: str, output_address: str) -> None:
    """The engine process: build the core, connect, say what it is, serve."""
    service = Service(wiring.build_core(), page_of(run_dir), wiring.log_stats_interval)
    inlet, outlet = partial(_commands, input_address, wiring, service.info), partial(_outlet, output_address, wiring)
    serve(service, wiring.timing.idle_interval, reporter, inlet, outlet)
