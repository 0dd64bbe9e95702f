"""Three processes in a chain: the detokenizer stands between the front and the engine, in both directions.

    front process (asyncio)              detokenizer process                 engine process
      PUSH ── to_detokenizer: [F, …] ──► PULL (bind) ◄── [E, …] ──────────── PUSH  output thread ◄─ queue ┐
                                         PUSH ── to_engine_core ───────────► PULL  input thread ──► queue │
      PULL (bind) ◄─ from_detokenizer ── PUSH                                (bind)    main thread: busy loop

Reproduces: vLLM's "[V1] [7/N] Multiprocessing Detokenizer" (commit a0f12af75b, never merged: "adding a 3rd process hurts performance").
A request goes through the detokenizer first, so that it has the request's parameters before the first token can arrive, and is forwarded
as the same bytes. A message to the detokenizer has a frame of one byte that tells who wrote it. It decodes each request's new tokens,
looks for stop strings, ends the request there and has the engine abort it. The engine is that of ``v1``.

Leaves out: signals to the parent when a child fails (it is watched), 0.5 GiB kernel buffers. Not searched here but at the front, as
everywhere else: requests for logprobs, which want every token's own text. A request that takes the id of one that a stop string has
just ended waits in the detokenizer until the engine is done with that one.
"""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from mqlab.client.queue import Queue
from mqlab.client.remote import SocketClient, feed, page_of
from mqlab.client.slot import Slot
from mqlab.client.streams import Streams
from mqlab.engine.service import Service
from mqlab.topologies.helperloop import DETOKENIZER
from mqlab.topologies.iothreads import serve
from mqlab.types import Command, Edge, Event, Model, ModelInfo, Shape
from mqlab.wire.codecs import Codec
from mqlab.wire.report import Reporter
from mqlab.wire.rundir import IpcPaths, RunDir
from mqlab.wire.sockets import SocketSet, sync_sockets
from mqlab.wire.spec import Spec
from mqlab.wire.wiring import Wiring

FRONT, ENGINE = b"F", b"E"
"""Who wrote a message to the detokenizer."""


@dataclass(frozen=True)
class Options:
    """What can be chosen.

    Attributes:
        detokenize: turn tokens into text; off, they pass through, and whoever wants text makes it.
        slot: what a reader has not read yet is merged into one delta; off, it queues up, a delta for each step.
    """

    detokenize: bool = True
    slot: bool = True


PRESETS = {"historical": Options(slot=False), "best": Options()}
RIG = {"roles": ("engine", DETOKENIZER)}


@dataclass(frozen=True)
class Addresses(IpcPaths):
    """Where each PULL is bound."""

    to_detokenizer: str
    to_engine_core: str
    from_detokenizer: str


class DetokChainClient(SocketClient):
    """The front's side."""

    io_threads = 2
    shape = Shape(
        "detok_chain",
        processes=(
            ("front", ("event loop",)),
            (DETOKENIZER, ("detokenizer loop",)),
            ("engine", ("engine loop", "input", "output")),
        ),
        edges=(
            Edge("front", DETOKENIZER, "PUSH→PULL", "requests, aborts, calls", "to_detokenizer"),
            Edge(DETOKENIZER, "engine", "PUSH→PULL", "the same bytes; aborts", "to_engine_core"),
            Edge("engine", DETOKENIZER, "PUSH→PULL", "one message a step", "to_detokenizer"),
            Edge(DETOKENIZER, "front", "PUSH→PULL", "the same with text", "from_detokenizer"),
        ),
    )

    def __init__(self, wiring: Wiring, options: Options = PRESETS["best"], *, log_to_terminal: bool = False) -> None:
        super().__init__(wiring, log_to_terminal=log_to_terminal)
        self._options = options
        self.streams = Streams(Slot if options.slot else Queue)

    def _entry(self, run_dir: RunDir) -> Spec:
        return Spec("mqlab.topologies.detok_chain:run_engine", {"wiring": self._wiring, "addresses": Addresses.within(run_dir)})

    def _helpers(self, run_dir: RunDir) -> Mapping[str, Spec]:
        kwargs = {"detokenize": self._options.detokenize, "addresses": Addresses.within(run_dir)}
        wiring = self._wiring.helping(DETOKENIZER)
        return {DETOKENIZER: Spec("mqlab.topologies.chain_detokenizer:run_detokenizer", {"wiring": wiring, **kwargs})}

    def _open_before(self, sockets: SocketSet[Any], run_dir: RunDir) -> None:
        self._output = sockets.bind("pull", Addresses.within(run_dir).from_detokenizer)

    async def _handshake(self, sockets: SocketSet[Any], run_dir: RunDir) -> ModelInfo:
        self._input = sockets.connect("push", Addresses.within(run_dir).to_detokenizer)
        # The engine's first word has come down the whole chain.
        model = self._codec.event(await self._output.recv())
        assert type(model) is Model, "the engine says first what it is"
        return model.info

    def _receivers(self) -> list[Any]:
        return [feed(weakref.ref(self), self._output, DetokChainClient.on_event)]

    def _write(self, command: Command) -> asyncio.Future[Any]:
        return self._input.send_multipart([FRONT, self._codec.encode(command)])

    async def on_event(self, frame: bytes) -> None:
        """One message of the detokenizer."""
        self._deliver(self._codec.event(frame))


def _commands(socket: Any, codec: Codec) -> Iterator[Command]:
    while True:
        yield codec.command(socket.recv())


def _outlet(address: str, wiring: Wiring, info: ModelInfo) -> tuple[SocketSet[Any], Callable[[Event], object]]:
    codec = wiring.build_codec()
    sockets = sync_sockets(wiring.engine_socket.build)
    socket = sockets.connect("push", address)

    def send(event: Event) -> None:
        socket.send_multipart([ENGINE, codec.encode(event)])

    send(Model(info))
    return sockets, send


def run_engine(reporter: Reporter, run_dir: Path, *, wiring: Wiring, addresses: Addresses) -> None:
    """The engine process: build the core, bind, say what it is, serve."""
    service = Service(wiring.build_core(), page_of(run_dir), wiring.log_stats_interval)
    # Bound before the first word is sent; the input thread has it from here on.
    socket = sync_sockets(wiring.engine_socket.build).bind("pull", addresses.to_engine_core)
    inlet, outlet = partial(_commands, socket, wiring.build_codec()), partial(_outlet, addresses.to_detokenizer, wiring, service.info)
    serve(service, wiring.timing.idle_interval, reporter, inlet, outlet)
