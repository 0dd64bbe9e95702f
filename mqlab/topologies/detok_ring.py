"""Three processes in a ring: what is asked goes to the scheduler, what it answers comes back through the detokenizer.

    front process (asyncio)             scheduler process: the engine            detokenizer process
      PUSH (bind) ── scheduler ───────► PULL   one loop, one thread
                                        PUSH ── detokenizer: token columns ────► PULL (bind)
      PULL (bind) ◄─ front ──────────── PUSH   answers of calls, model's changes
                  ◄─ front: text columns ─────────────────────────────────────── PUSH

Reproduces: SGLang (2025-01 to 2026). A step is one message in columns each way, with what the detokenizer must know of a request on
every row, for it never sees the request itself; its states are bounded. The scheduler takes commands between steps and, historically,
spins while it is idle. ``stream_interval`` holds tokens back before the socket, as there.

Leaves out: stop strings in the scheduler (the front looks for them, as everywhere else, and aborts; like requests for logprobs, which want
every token's own text, these pass the detokenizer as tokens); ``batch_decode`` over all requests, for decoding here is incremental, and
holding back what follows the last space; the overlap loop, which is ``--async-scheduling``; sockets for internal calls and metrics; a
wider interval for requests that are not streamed; a limit of what is received between two steps. What the engine dies of goes the long
way round, behind its last tokens; answers and the model's changes take the short one, and may overtake tokens.
"""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from mqlab.client.remote import SocketClient, feed
from mqlab.config import check
from mqlab.topologies.columns import TextColumns
from mqlab.topologies.helperloop import DETOKENIZER
from mqlab.types import Abort, Command, Edge, Event, Model, ModelInfo, Shape
from mqlab.wire.cumulative import Growth
from mqlab.wire.rundir import IpcPaths, RunDir
from mqlab.wire.sockets import SocketSet
from mqlab.wire.spec import Spec
from mqlab.wire.wiring import Wiring


@dataclass(frozen=True)
class Options:
    """What can be chosen.

    Attributes:
        detokenize: turn tokens into text; off, they pass through, and whoever wants text makes it.
        idle: the scheduler polls while it has nothing to do, or spins, which costs a processor.
        stream_interval: tokens that a request gains before they are sent; its last ones are sent at once.
        max_states: requests of which the detokenizer keeps the state; beyond, the oldest one fails.
    """

    detokenize: bool = True
    idle: Literal["poll", "spin"] = "poll"
    stream_interval: int = 1
    max_states: int = 65536

    def __post_init__(self) -> None:
        for name in ("stream_interval", "max_states"):
            check(getattr(self, name) >= 1, self, name, "must be at least 1")


PRESETS = {"historical": Options(idle="spin"), "best": Options()}
RIG = {"roles": ("engine", DETOKENIZER)}


@dataclass(frozen=True)
class Addresses(IpcPaths):
    """Where each reader is found."""

    scheduler: str
    detokenizer: str
    front: str


class DetokRingClient(SocketClient):
    """The front's side."""

    io_threads = 2
    shape = Shape(
        "detok_ring",
        processes=(("front", ("event loop",)), ("engine", ("scheduler loop",)), (DETOKENIZER, ("detokenizer loop",))),
        edges=(
            Edge("front", "engine", "PUSH→PULL", "requests, aborts, calls", "scheduler"),
            Edge("engine", DETOKENIZER, "PUSH→PULL", "a step's tokens, in columns", "detokenizer"),
            Edge("engine", "front", "PUSH→PULL", "answers of calls", "front"),
            Edge(DETOKENIZER, "front", "PUSH→PULL", "a step's text, in columns", "front"),
        ),
    )

    def __init__(self, wiring: Wiring, options: Options = PRESETS["best"], *, log_to_terminal: bool = False) -> None:
        super().__init__(wiring, log_to_terminal=log_to_terminal)
        self._options = options
        self._decode = self._codec.decoder(TextColumns | Event)
        self._growth = growth_of(wiring)

    def _entry(self, run_dir: RunDir) -> Spec:
        kwargs = {"wiring": self._wiring, "options": self._options, "addresses": Addresses.within(run_dir)}
        return Spec("mqlab.topologies.ring_scheduler:run_scheduler", kwargs)

    def _helpers(self, run_dir: RunDir) -> Mapping[str, Spec]:
        kwargs = {"max_states": self._options.max_states, "addresses": Addresses.within(run_dir)}
        kwargs["wiring"] = self._wiring.helping(DETOKENIZER)
        return {DETOKENIZER: Spec("mqlab.topologies.ring_detokenizer:run_detokenizer", kwargs)}

    def _open_before(self, sockets: SocketSet[Any], run_dir: RunDir) -> None:
        addresses = Addresses.within(run_dir)
        self._input = sockets.bind("push", addresses.scheduler)
        self._output = sockets.bind("pull", addresses.front)

    async def _handshake(self, sockets: SocketSet[Any], run_dir: RunDir) -> ModelInfo:
        model = self._decode(await self._output.recv())
        assert type(model) is Model, "the scheduler says first what it is"
        return model.info

    def _receivers(self) -> list[Any]:
        return [feed(weakref.ref(self), self._output, DetokRingClient.on_message)]

    def _write(self, command: Command) -> asyncio.Future[Any]:
        return self._input.send(self._codec.encode(command))

    async def on_message(self, frame: bytes) -> None:
        """One message of the detokenizer or the scheduler."""
        message = self._decode(frame)
        if type(message) is not TextColumns:
            self._deliver(message)
            return
        if message.errors and self._alive:  # the engine does not know of those that the detokenizer ended
            self._post(Abort(tuple(message.ids[row] for row in message.errors), message.client))
        step = message.step()
        self._deliver(step if self._growth is None else self._growth.cut(step))


def growth_of(wiring: Wiring) -> Growth | None:
    """What makes outputs cumulative: columns are no Steps, which a codec could make so by itself."""
    return Growth() if wiring.output == "cumulative" else None
