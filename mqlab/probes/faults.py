"""Faults on purpose: a core that fails, hangs, dawdles or refuses as told, for rehearsing what an engine's users must survive.

    Wiring(core, wraps=(Spec("mqlab.probes.faults:FaultyCore", {"fail_step": 3}),))

Wraps the Core seam and nothing else: every layout, codec and client can be tried with it, and with none chosen the core is the plain one.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from mqlab.engine.calls import answer
from mqlab.engine.core import Core
from mqlab.errors import InvalidRequest
from mqlab.plan import InFlight, SampledTokens
from mqlab.types import Call, Delta, Event, Failure, ModelInfo, Request, Step


class InjectedFault(RuntimeError):
    """A failure that was asked for."""


@dataclass(frozen=True, kw_only=True)
class Faults:
    """What goes wrong, and when. Steps count from 1; times are seconds.

    Attributes:
        fail_build: building the core raises.
        slow_build: building the core takes this much longer.
        fail_step: this step raises.
        fail_in: the part of it that raises.
        fail_abort: every abort raises, which is fatal to the engine.
        hang_step: this step stays somewhere for ``hang_seconds``.
        hang_in: the part of it in which it does.
        hold_gil: hangs keep the interpreter lock, as a stuck extension does: no other thread of the process runs.
        slow_step: every step's ``wait`` takes this much longer.
        slow_load: so does every part of a load, which is no step.
        slow_add: so does adding a request, as in engines that tokenise.
        refuse: ids of requests that are refused when added.
        fail_requests: ids of requests that fail at their first token, alone.
    """

    fail_build: bool = False
    slow_build: float = 0.0
    fail_step: int | None = None
    fail_in: Literal["begin", "wait", "finish"] = "begin"
    fail_abort: bool = False
    hang_step: int | None = None
    hang_seconds: float = 3600.0
    hang_in: Literal["begin", "wait", "finish"] = "wait"
    hold_gil: bool = False
    slow_step: float = 0.0
    slow_load: float = 0.0
    slow_add: float = 0.0
    refuse: tuple[str, ...] = ()
    fail_requests: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class FaultyFlight:
    """A flight with something to do before it lands."""

    inner: InFlight
    delay: Callable[[], None]

    def wait(self) -> SampledTokens:
        """The inner flight's tokens, late or never."""
        self.delay()
        return self.inner.wait()


class FaultyCore:
    """Obeys the Core contract but for the faults it was given. Adds three control calls: ``hang(seconds)``, ``fail()`` and ``opaque()``.

    Args:
        core: the core inside.
        faults: fields of ``Faults``.

    Raises:
        InjectedFault: ``fail_build`` was asked for.
    """

    def __init__(self, core: Core, **faults: Any) -> None:
        self._core = core
        self._faults = Faults(**faults)
        self._steps = 0
        self._in_flight = False
        self._deferred: list[Call] = []
        self._own_calls: dict[str, Callable[..., Any]] = {"hang": self._hang, "fail": _fail, "opaque": object}
        self.calls: Mapping[str, Callable[..., Any]] = {**core.calls, **self._own_calls}
        time.sleep(self._faults.slow_build)
        if self._faults.fail_build:
            raise InjectedFault("the core was told to fail while it is built (fail_build)")

    @property
    def info(self) -> ModelInfo:
        """What clients must know."""
        return self._core.info

    @property
    def has_work(self) -> bool:
        """Whether a step would do anything."""
        return self._core.has_work

    @property
    def loading(self) -> bool:
        """Whether the next flight, or the one that is out, is part of a call."""
        return self._core.loading

    def check(self) -> None:
        """See that the core inside is well."""
        self._core.check()

    def add(self, request: Request) -> None:
        """Queue a request.

        Raises:
            InvalidRequest: the core refuses it, or was told to.
        """
        if request.id in self._faults.refuse:
            raise InvalidRequest(f"request {request.id!r} is refused as told (refuse)")
        time.sleep(self._faults.slow_add)
        self._core.add(request)

    def abort(self, ids: tuple[str, ...] | None, client: int = 0) -> list[Delta]:
        """End requests.

        Raises:
            InjectedFault: ``fail_abort``.
        """
        if self._faults.fail_abort:
            raise InjectedFault("abort was told to fail (fail_abort)")
        return self._core.abort(ids, client)

    def call(self, call: Call) -> list[Event]:
        """Run one control call, the core's or one of this wrapper's; in flight it waits for ``finish``."""
        if call.method in self._core.calls:
            return self._core.call(call)
        if self._in_flight:
            self._deferred.append(call)
            return []
        return [answer(self.calls, call)]

    def begin(self) -> InFlight:
        """Start a step, unless it is the one to fail here."""
        if self._core.loading:
            self._in_flight = True
            return FaultyFlight(self._core.begin(), self._delay_load)
        self._steps += 1
        self._fail_in("begin")
        self._hang_in("begin")
        flight = FaultyFlight(self._core.begin(), self._delay)
        self._in_flight = True
        return flight

    def finish(self, sampled: SampledTokens) -> list[Event]:
        """Account a step, unless it is the one to fail here."""
        if not self._core.loading:
            self._fail_in("finish")
            self._hang_in("finish")
        self._in_flight = False
        events = [self._break(event) for event in self._core.finish(sampled)]
        deferred, self._deferred = self._deferred, []
        return [*events, *(answer(self.calls, call) for call in deferred)]

    def close(self) -> None:
        """Close the core inside."""
        self._core.close()

    def _delay(self) -> None:
        self._fail_in("wait")
        time.sleep(self._faults.slow_step)
        self._hang_in("wait")

    def _delay_load(self) -> None:
        time.sleep(self._faults.slow_load)

    def _hang_in(self, part: str) -> None:
        if self._steps == self._faults.hang_step and part == self._faults.hang_in:
            self._hang(self._faults.hang_seconds)

    def _hang(self, seconds: float) -> None:
        if self._faults.hold_gil:
            _hold_gil(seconds)
        else:
            time.sleep(seconds)

    def _fail_in(self, part: str) -> None:
        if self._steps == self._faults.fail_step and part == self._faults.fail_in:
            raise InjectedFault(f"step {self._steps} was told to fail in {part} (fail_step)")

    def _break(self, event: Event) -> Event:
        if type(event) is not Step:
            return event
        return Step([self._break_one(delta, event.client) for delta in event.deltas], event.client)

    def _break_one(self, delta: Delta, client: int) -> Delta:
        if delta.id not in self._faults.fail_requests:
            return delta
        self._core.abort((delta.id,), client)
        failure = Failure("failed", f"request {delta.id!r} fails as told (fail_requests)")
        return Delta(delta.id, [], finish="error", error=failure)


def _hold_gil(seconds: float) -> None:
    """Wait in C for a mutex that this thread itself has: unlike a sleep, no signal cuts that short."""
    libc = ctypes.PyDLL(None)  # unlike CDLL, it calls without letting the interpreter lock go
    mutex = ctypes.create_string_buffer(128)  # zeros are an initialised pthread_mutex_t
    until = time.time() + seconds
    libc.pthread_mutex_lock(mutex)
    libc.pthread_mutex_timedlock(mutex, (ctypes.c_long * 2)(int(until), int(until % 1 * 1e9)))  # a struct timespec


def _fail() -> None:
    raise InjectedFault("the call was told to fail")
