"""A core whose model comes and goes while it runs: load, unload, sleep, wake_up.

          load                                 sleep
    ┌───────────────► ready, epoch + 1 ◄──────────────────► asleep ───┐
    │                   │                      wake_up                │ load, unload: as from ready
    └──── unloaded ◄────┘ unload

What takes long (finding a model, opening it) is a flight as a step is: the loop launches it, waits for it wherever it waits for the
device, and goes on with its result. Until it lands, requests are refused and calls wait.
Source of sleep's levels: vLLM (v0.7, --enable-sleep-mode).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from functools import partial
from typing import Any, Generic, Literal, TypeVar

import msgspec

from mqlab.clock import Clock
from mqlab.engine.calls import Parts
from mqlab.engine.desk import Desk
from mqlab.engine.memory import reclaim, resident
from mqlab.engine.sequence import Sequence
from mqlab.engine.takeoff import Landed
from mqlab.errors import CallError
from mqlab.plan import InFlight, SampledTokens
from mqlab.types import Call, Delta, Event, Failure, Model, ModelInfo, Request

S = TypeVar("S")
State = Literal["ready", "unloaded", "asleep"]

LEVELS = (1, 2)
"""Of sleep: the KV memory is freed, or the weights as well."""


class LoadableCore(ABC, Generic[S]):
    """All of the Core contract but the steps. ``S`` is what a model is set up with.

    Args:
        setup: of the model that is open, or that ``load`` begins with.
        info: of the model.
        clock: stamps the statistics.

    Attributes:
        info: what clients must know, as of now.
        calls: control calls by name.
    """

    def __init__(self, setup: S, info: ModelInfo, clock: Clock) -> None:
        self._first = self._setup = setup
        self._resting = False  # asleep with its weights
        self._clock = clock
        self._desk = Desk(clock)
        self.calls = self._desk.calls
        self.calls |= {
            "load": self._load,
            "unload": self._unload,
            "sleep": self._sleep,
            "wake_up": self._wake_up,
            "is_sleeping": lambda: self.info.state == "asleep",
        }
        self.info = info
        self._serve(info, setup)

    # --- what a core adds

    @abstractmethod
    def _serve(self, info: ModelInfo, setup: S) -> None:
        """Make queues and blocks anew, for a model that is ready, or none for one that is not, and tell the desk."""

    @abstractmethod
    def _queue(self, sequence: Sequence) -> None:
        """Take in a sequence."""

    @abstractmethod
    def _launch(self) -> InFlight | None:
        """Launch one step; None when it must wait for one in flight."""

    @abstractmethod
    def _land(self, sampled: SampledTokens) -> Landed:
        """The oldest step is done."""

    @abstractmethod
    def _changed(self, setup: S, model: str, options: Mapping[str, Any]) -> S:
        """The setup for another model.

        Raises:
            ConfigError: an option is unknown, or wrong.
        """

    @abstractmethod
    def _find(self, setup: S) -> None:
        """See whether the model is there, as far as one can while another is open. In flight: takes long, maybe in another thread.

        Raises:
            ModelError, ConfigError: it cannot be served.
        """

    @abstractmethod
    def _open(self, setup: S) -> ModelInfo:
        """Bring weights and KV memory into being; called when there are none. In flight, as ``_find``.

        Raises:
            ModelError, ConfigError: it cannot be served.
        """

    @abstractmethod
    def _rest(self) -> None:
        """Free the KV memory."""

    @abstractmethod
    def _resume(self) -> None:
        """Bring the KV memory back. In flight, as ``_find``.

        Raises:
            ConfigError: there is no room for it.
        """

    @abstractmethod
    def _shut(self) -> None:
        """Free weights and KV memory, whatever there is of them; idempotent."""

    # --- the contract

    @property
    def has_work(self) -> bool:
        """Whether any request is live, a step in flight, or a call under way."""
        return self._desk.busy

    @property
    def loading(self) -> bool:
        """Whether what ``begin`` launches next, or has launched, is part of a call: no step, and it may take minutes."""
        return self._desk.loading

    def check(self) -> None:
        """See that all that a step needs is there; a core that needs more than its own process says so."""

    def add(self, request: Request) -> None:
        """Queue a request.

        Raises:
            InvalidRequest: it can never run, or its id is live. ModelUnavailable: no model, or another one than it was made for.
        """
        self._queue(self._desk.admit(request))

    def abort(self, ids: tuple[str, ...] | None, client: int = 0) -> list[Delta]:
        """End these requests of a client, or all of them; in flight they are only marked."""
        return self._desk.abort(ids, client)

    def call(self, call: Call) -> list[Event]:
        """Run one control call; in flight, or while another is under way, it waits for ``finish``."""
        return self._desk.call(call)

    def begin(self) -> InFlight:
        """Launch one step, or as many as may be in flight, or a part of a call. Returns the oldest."""
        return self._desk.depart(self._launch)

    def finish(self, sampled: SampledTokens) -> list[Event]:
        """Account what ``begin`` returned, and hand out its tokens."""
        return self._desk.settle(self._land, sampled)

    def close(self) -> None:
        """Free everything; idempotent."""
        self._desk.close()
        self._shut()

    # --- the calls

    def _load(self, model: str, options: Mapping[str, Any] | None = None) -> Parts:
        """Serve another model; what was loaded stays when it is seen beforehand that the other cannot be.

        Args:
            model: its name.
            options: settings that are to differ from those that the engine was started with.
        """
        setup = self._changed(self._first, model, options or {})
        yield partial(self._find, setup)
        self._leave("unloaded", "another model was loaded")
        info = yield from self._opened(setup)
        self._setup = setup
        return self._enter(msgspec.structs.replace(info, epoch=self.info.epoch + 1))

    def _unload(self) -> dict[str, int]:
        """Free weights and KV memory; the process stays. Returns its memory before and after, in bytes."""
        return self._leave("unloaded", "the model was unloaded")

    def _sleep(self, level: int = 1) -> dict[str, int]:
        """Free the KV memory, and from level 2 on the weights. Returns the process's memory before and after, in bytes."""
        if level not in LEVELS:
            raise CallError(f"sleep: level={level!r} must be 1 (the KV memory is freed, the weights stay) or 2 (both are freed)")
        if self.info.state == "unloaded":
            raise CallError("sleep: no model is loaded; load one first")
        return self._leave("asleep", "the model was put to sleep", level)

    def _wake_up(self) -> Parts:
        """Serve again after ``sleep``; nothing happens to a model that is awake."""
        if self.info.state == "unloaded":
            raise CallError("wake_up: no model is loaded; load one")
        if self.info.state == "ready":
            return self.info
        if self._resting:
            yield self._resume
            return self._enter(self.info)
        info = yield from self._opened(self._setup)
        return self._enter(msgspec.structs.replace(info, epoch=self.info.epoch))

    def _opened(self, setup: S) -> Parts:
        try:
            return (yield partial(self._open, setup))
        except CallError:
            self._shut()
            reclaim()
            raise

    def _enter(self, info: ModelInfo) -> ModelInfo:
        """What is open is ready to serve."""
        self._resting = False
        self._tell(msgspec.structs.replace(info, state="ready", sleep_level=0))
        return self.info

    def _leave(self, state: State, why: str, level: int = 0) -> dict[str, int]:
        """What is open serves no more, and is freed, but for its weights where it is to rest (a sleep's level 1)."""
        resting = level == 1
        before = resident()
        open_still = self.info.state == "ready" or (self._resting and not resting)
        if open_still:
            self._desk.expel(Failure("unavailable", f"{why} while the request ran; send it again"))
        if state != self.info.state or level > self.info.sleep_level:
            self._tell(msgspec.structs.replace(self.info, state=state, sleep_level=level))
        if open_still:
            self._free(resting)
        return {"rss_before": before, "rss_after": resident()}

    def _free(self, resting: bool) -> None:
        self._resting = resting
        if resting:
            self._rest()
        else:
            self._shut()
        reclaim()

    def _tell(self, info: ModelInfo) -> None:
        self.info = info
        self._serve(info, self._setup)
        self._desk.announce(Model(info))
