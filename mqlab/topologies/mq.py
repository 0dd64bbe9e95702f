"""A message-queue engine behind four sockets.

    front process (asyncio)                 engine process (plain loop, no asyncio)
      PUSH  ── input: request, abort, call ──►  PULL (bind)
      PULL  ◄─ output: one message a step ────  PUSH (bind)
      PULL  ◄─ health: all is well, or not ───  PUSH (bind)
      DEALER ─ data: "ready?" once, at start ►  ROUTER (bind)

Reproduces: vLLM's MQLLMEngine (PR 8157, v0.6.2 to v0.10) and Aphrodite's copy of it. Outputs of the last step are sent, and
input is taken, while the device runs the next one (``intake="callback"``). Its health check was made three times, and each is here with
what was wrong with it (mqlab.topologies.pulse):

    probe   the front asks on the input socket when the health socket is quiet: behind a queue of requests a well engine counts as dead
    beat    a thread of the engine says so every few seconds: whatever holds the GIL for long makes a well engine count as dead
    pid     the front looks whether the process lives: a hang goes unnoticed
    stamp   ours: the front reads the step stamp from shared memory, and sees death and hangs, not slowness

``output_loops=2`` brings back a start that was tried twice (before PR 10802): two tasks receive outputs, and when one's message is
in its future while it waits for its turn, the other takes the next message and hands that out first.

The historical preset is v0.6.2 and v0.6.3, which is what Aphrodite took over: high-water marks of libzmq, the beating thread, a queue a
stream. Leaves out: logits processors as a second frame, the data socket's retries (readiness is known before the question is asked).
"""

from __future__ import annotations

import asyncio
import contextlib
import weakref
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from mqlab.client.queue import Queue
from mqlab.client.remote import SocketClient, feed, page_of
from mqlab.client.slot import Slot
from mqlab.client.streams import Streams
from mqlab.config import check
from mqlab.engine.core import no_op
from mqlab.engine.service import Service, died_of
from mqlab.topologies.pulse import ASK, Ear, Generation, make_heart
from mqlab.types import Command, Dead, Edge, Event, Health, ModelInfo, Shape
from mqlab.wire.report import Reporter
from mqlab.wire.rundir import IpcPaths, RunDir
from mqlab.wire.sockets import SocketSet, sync_sockets
from mqlab.wire.spec import Spec
from mqlab.wire.wiring import Wiring

_LINGER_MS = 1000


@dataclass(frozen=True)
class Options:
    """What can be chosen.

    Attributes:
        hwm: high-water mark of the four sockets; 0 is unlimited. At 1000 a stalled front blocks the engine.
        intake: ``callback`` sends and receives while the device runs, ``poll`` only between steps.
        health: how the front tells a live engine from a dead one; see above.
        health_timeout: seconds without a beat, or without the answer to a probe, that count as death.
        beat_interval: seconds between two beats, and of quiet before a probe.
        output_loops: tasks of the front that receive outputs; with two, tokens come out of order.
        slot: what a reader has not read yet is merged into one delta; off, it queues up, a delta for each step.
    """

    hwm: int = 0
    intake: Literal["callback", "poll"] = "callback"
    health: Generation = "stamp"
    health_timeout: float = 10.0
    beat_interval: float = 2.0
    output_loops: Literal[1, 2] = 1
    slot: bool = True

    def __post_init__(self) -> None:
        check(self.health_timeout > 0, self, "health_timeout", "must be above 0")
        check(self.beat_interval > 0, self, "beat_interval", "must be above 0")


PRESETS = {"historical": Options(hwm=1000, health="beat", slot=False), "best": Options()}


@dataclass(frozen=True)
class Addresses(IpcPaths):
    """Where the four sockets are."""

    input: str
    output: str
    health: str
    data: str


class MqClient(SocketClient):
    """The front's side."""

    shape = Shape(
        "mq",
        processes=(("front", ("event loop",)), ("engine", ("engine loop",))),
        edges=(
            Edge("front", "engine", "PUSH→PULL", "requests, aborts, calls", "input"),
            Edge("engine", "front", "PUSH→PULL", "one message a step", "output"),
            Edge("engine", "front", "PUSH→PULL", "health", "health"),
            Edge("front", "engine", "DEALER→ROUTER", "readiness, once", "data"),
        ),
    )

    def __init__(self, wiring: Wiring, options: Options = PRESETS["best"], *, log_to_terminal: bool = False) -> None:
        super().__init__(wiring, log_to_terminal=log_to_terminal)
        self._options = options
        self.streams = Streams(Slot if options.slot else Queue)
        self._ear = Ear(options.health, options.beat_interval, options.health_timeout)

    def _entry(self, run_dir: RunDir) -> Spec:
        addresses = Addresses.within(run_dir)
        return Spec("mqlab.topologies.mq:run_engine", {"wiring": self._wiring, "options": self._options, "addresses": addresses})

    def _open_before(self, sockets: SocketSet[Any], run_dir: RunDir) -> None:
        """Nothing: the engine binds, and it binds only once the model is loaded."""

    async def _handshake(self, sockets: SocketSet[Any], run_dir: RunDir) -> ModelInfo:
        addresses = Addresses.within(run_dir)
        hwm = self._options.hwm
        self._input = sockets.connect("push", addresses.input, hwm=hwm)
        self._output = sockets.connect("pull", addresses.output, hwm=hwm)
        self._health_socket = sockets.connect("pull", addresses.health, hwm=hwm)
        data = sockets.connect("dealer", addresses.data)
        await data.send(b"ready?")
        info = self._codec.info(await data.recv())
        sockets.close_socket(data)
        self._ear.start()
        return info

    def _receivers(self) -> list[Any]:
        me = weakref.ref(self)
        outputs = [feed(me, self._output, MqClient.on_event) for _ in range(self._options.output_loops)]
        return [*outputs, feed(me, self._health_socket, MqClient.on_health)]

    def _write(self, command: Command) -> asyncio.Future[Any]:
        return self._input.send(self._codec.encode(command))

    def watch_once(self) -> None:
        """See BaseClient.watch_once; asks first, where that is how the engine is watched."""
        self._ear.ask(self._input)
        super().watch_once()

    def _health(self) -> Health:
        health = super()._health()
        if self._options.health == "stamp":
            return health
        # What the engine does may be told; whether it is well is the generation's to say.
        if self._options.health == "pid":
            fault, detail = "", f"process alive; last idle beat {self._ear.quiet_s:.1f} s ago"
        else:
            fault = detail = self._ear.fault()
        return Health(state="hung" if fault else "ready", detail=detail, phase=health.phase, phase_age_s=health.phase_age_s)

    async def on_event(self, frame: bytes) -> None:
        """One message of the output socket."""
        self._deliver(self._codec.event(frame))

    async def on_health(self, frame: bytes) -> None:
        """One message of the health socket."""
        self._ear.hear(frame)


class MqEngine:
    """The engine's side: one loop, one thread."""

    def __init__(self, service: Service, wiring: Wiring, options: Options, addresses: Addresses) -> None:
        self._service = service
        self._codec = wiring.build_codec()
        self._idle_ms = round(wiring.timing.idle_interval * 1000)
        self._busy = self._exchange if options.intake == "callback" else no_op
        self._outbox: list[Event] = []
        sockets = self._sockets = sync_sockets(wiring.engine_socket.build)
        self._input = sockets.bind("pull", addresses.input, hwm=options.hwm)
        self._output = sockets.bind("push", addresses.output, hwm=options.hwm)
        health = sockets.bind("push", addresses.health, hwm=options.hwm)
        self._data = sockets.bind("router", addresses.data)
        self._heart = make_heart(health, options.health, options.beat_interval, options.health_timeout)

    def shake_hands(self) -> None:
        """Answer the one readiness question, then close the data socket."""
        peer, _ = self._data.recv_multipart()
        self._data.send_multipart([peer, self._codec.encode(self._service.info)])
        # Closing at once could drop the answer: linger is 0. The socket is closed with the others.

    def run(self) -> None:
        """Serve until stopped."""
        while True:
            if not self._service.has_work:
                self._wait_for_input()
            self._take_input()
            self._heart.turned(loading=self._service.loading)
            if self._service.has_work:
                self._outbox += self._service.step(self._busy)
            if self._busy is no_op or not self._service.has_work:
                self._send_outputs()

    def last_words(self, dead: Dead) -> None:
        """Tell the front why the engine ends."""
        self._outbox.append(dead)
        with contextlib.suppress(Exception):  # what made the engine fail may be what it cannot send
            self._send_outputs()
        self._heart.stop()
        self._sockets.close(linger_ms=_LINGER_MS)

    def _wait_for_input(self) -> None:
        while not self._input.poll(self._idle_ms):
            self._service.idle()
            self._heart.idle()

    def _exchange(self) -> None:
        self._send_outputs()
        self._take_input()

    def _take_input(self) -> None:
        while self._input.poll(0):
            frame = self._input.recv()
            if frame == ASK:
                self._heart.say()
            else:
                self._outbox += self._service.apply(self._codec.command(frame))

    def _send_outputs(self) -> None:
        for event in self._outbox:
            self._output.send(self._codec.encode(event))
        self._outbox.clear()


def run_engine(reporter: Reporter, run_dir: Path, *, wiring: Wiring, options: Options, addresses: Addresses) -> None:
    """The engine process: build the core, bind, shake hands, serve."""
    core = wiring.build_core()
    engine = MqEngine(Service(core, page_of(run_dir), wiring.log_stats_interval), wiring, options, addresses)
    reporter.ready()
    engine.shake_hands()
    try:
        engine.run()
    except Exception as error:
        engine.last_words(died_of(error))
        raise
