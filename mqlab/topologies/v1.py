"""The V1 engine core: a busy loop between two IO threads, two sockets.

    front process (asyncio)                      engine process
      ROUTER (bind) ── request, abort, call ──►  DEALER   input thread ─► queue ─┐
                                                          main thread: busy loop  │
      PULL (bind)  ◄── one message a step ─────  PUSH     output thread ◄─ queue ┘

Reproduces: vLLM V1's AsyncLLM + EngineCore (PR 9289 onwards): decoding and encoding leave the engine's loop, input arrives while
the device runs, the front works off large steps in chunks so that streams stay even (PR 12287). Leaves out: the type byte of a
request (the message's own tag tells), data-parallel coordination, out-of-band tensors.
"""

from __future__ import annotations

import asyncio
import struct
import threading
import traceback
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

from mqlab.client.remote import RemoteClient, feed, page_of
from mqlab.engine.service import Service
from mqlab.types import Command, Dead, Edge, Event, ModelInfo, Shape, Step
from mqlab.wire.report import Reporter
from mqlab.wire.rundir import RunDir
from mqlab.wire.sockets import SocketSet, sync_sockets
from mqlab.wire.spec import Spec
from mqlab.wire.wiring import Wiring

_RANK = struct.pack("<H", 0)
_LINGER_MS = 1000


@dataclass(frozen=True)
class Options:
    """What can be chosen.

    Attributes:
        chunk: deltas that the front works off before it lets its streams run; 0 works off a whole step at once.
    """

    chunk: int = 128


PRESETS = {"historical": Options(), "best": Options()}


class V1Client(RemoteClient):
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

    async def _send(self, command: Command) -> None:
        await self._sent(self._input.send_multipart([_RANK, self._codec.encode(command)]))

    def _post(self, command: Command) -> None:
        # The future is the socket's to keep; a close cancels it.
        self._input.send_multipart([_RANK, self._codec.encode(command)])

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


class V1Engine:
    """The engine's main thread: a busy loop that only meets queues."""

    def __init__(self, service: Service, idle_interval: float) -> None:
        self._service = service
        self._idle_interval = idle_interval
        self.inbox: SimpleQueue[Command | Exception] = SimpleQueue()
        self.outbox: SimpleQueue[Event | None] = SimpleQueue()

    def run(self) -> None:
        """Serve until stopped."""
        while True:
            if not self._service.has_work:
                self._wait_for_command()
            self._take_commands()
            if self._service.has_work:
                # Aborts that arrive while the device runs are known before its tokens are accounted.
                self._put(self._service.step(self._take_commands))

    def _wait_for_command(self) -> None:
        while True:
            try:
                self._take(self.inbox.get(timeout=self._idle_interval))
                return
            except Empty:
                self._service.idle()

    def _take_commands(self) -> None:
        while not self.inbox.empty():
            self._take(self.inbox.get())

    def _take(self, command: Command | Exception) -> None:
        if isinstance(command, Exception):
            raise command
        self._put(self._service.apply(command))

    def _put(self, events: list[Event]) -> None:
        for event in events:
            self.outbox.put(event)


def _receive_commands(address: str, wiring: Wiring, info: ModelInfo, inbox: SimpleQueue[Command | Exception]) -> None:
    """The input thread: say what the engine is, then decode off the engine's loop. What it cannot decode is the loop's death."""
    codec = wiring.build_codec()
    socket = sync_sockets(wiring.engine_socket.build).connect("dealer", address, identity=_RANK)
    socket.send(codec.encode(info))
    try:
        while True:
            inbox.put(codec.command(socket.recv()))
    except Exception as error:
        inbox.put(error)


def _send_events(address: str, wiring: Wiring, outbox: SimpleQueue[Event | None], inbox: SimpleQueue[Command | Exception]) -> None:
    """The output thread: encode off the engine's loop; None flushes and ends it. What it cannot encode is the loop's death."""
    codec = wiring.build_codec()
    sockets = sync_sockets(wiring.engine_socket.build)
    socket = sockets.connect("push", address)
    while (event := outbox.get()) is not None:
        try:
            socket.send(codec.encode(event))
        except Exception as error:
            inbox.put(error)
    sockets.close(linger_ms=_LINGER_MS)


def run_engine(reporter: Reporter, run_dir: Path, *, wiring: Wiring, input_address: str, output_address: str) -> None:
    """The engine process: build the core, connect, say what it is, serve."""
    service = Service(wiring.build_core(), page_of(run_dir), wiring.log_stats_interval)
    engine = V1Engine(service, wiring.timing.idle_interval)
    _start_thread("input", _receive_commands, input_address, wiring, service.info, engine.inbox)
    output = _start_thread("output", _send_events, output_address, wiring, engine.outbox, engine.inbox)
    reporter.ready()
    try:
        engine.run()
    except Exception as error:
        engine.outbox.put(Dead(f"the engine failed: {type(error).__name__}: {error}", traceback.format_exc()))
        engine.outbox.put(None)
        output.join(2 * _LINGER_MS / 1000)
        raise


def _start_thread(name: str, target: Callable[..., None], *args: Any) -> threading.Thread:
    thread = threading.Thread(target=target, args=args, name=name, daemon=True)
    thread.start()
    return thread
