"""Where an engine's step spends its time, and how long a request waits for its first one."""

from __future__ import annotations

import struct
import weakref
from collections.abc import Callable, Collection, Container, Iterable, Mapping
from pathlib import Path
from time import monotonic_ns, thread_time_ns
from typing import Any

import numpy as np

from mqlab.engine.core import Core, no_op
from mqlab.plan import InFlight, Plan, SampledTokens
from mqlab.probes import meter
from mqlab.probes.base import attempt, dropped
from mqlab.probes.cost import cost_ns
from mqlab.probes.runner import Parts, meter_runner
from mqlab.probes.sink import Sink
from mqlab.record.events import STEP
from mqlab.record.requests import EngineRow
from mqlab.types import Call, Delta, Event, ModelInfo, Request, Step
from mqlab.wire.leaving import on_leave
from mqlab.wire.spec import Spec

_SUMS = ("schedule_ns", "launch_ns", "device_ns", "sample_ns", "output_ns", "tokens", "new_tokens")
_FLUSH_NS = 50_000_000
_NOTED = struct.Struct("11q")  # what StepProbe.step puts by
_NOTED_BYTES = _NOTED.size
_ROOM_BYTES = 512 * _NOTED_BYTES
_note = _NOTED.pack_into


class MeteredFlight:
    """Times one step after the other; there is one for each core, for a step begins only when the last has ended.

    Attributes:
        inner: what the core launched.
        begin_ns, begun_ns: when ``begin`` was called, and when it returned.
        wait_ns, waited_ns: the same of ``wait``.
    """

    __slots__ = ("begin_ns", "begun_ns", "inner", "wait_ns", "waited_ns")

    inner: InFlight
    begin_ns: int
    begun_ns: int
    wait_ns: int
    waited_ns: int

    def wait(self) -> SampledTokens:
        """The inner flight's tokens."""
        self.wait_ns = monotonic_ns()
        sampled = self.inner.wait()
        self.waited_ns = monotonic_ns()
        return sampled


class StepProbe:
    """Counters, events and lines about steps. Same thread rules as the core.

    Of a step only its stamps are put by; every 50 ms, and when the core has nothing more to do, rows and sums are made of them.

    Args:
        cost_ns: what putting one step by costs; the rest is measured.
    """

    def __init__(self, sink: Sink, parts: Parts, cost_ns: int) -> None:
        self._sink = sink
        self._parts = parts
        self._cost_ns = cost_ns
        names = ["step.count", *(f"step.{name}" for name in _SUMS), "request.scheduled", "request.queue_ns"]
        self._block = sink.block(*names, "probe.steps.events", "probe.steps.ns", "probe.steps.dropped")
        self._log = sink.log(STEP)
        self._lines = sink.lines()
        self._added: dict[str, int] = {}
        self._noted = bytearray(_ROOM_BYTES)
        self._used = 0
        self._scheduled_rows: list[EngineRow] = []
        self._due_ns = 0
        self._spent_ns = 0
        self._sums = np.zeros(len(STEP.columns), np.int64)
        self._count = self._scheduled = self._queue_ns = 0

    def added(self, request: Request) -> None:
        """A request waits for its first step."""
        self._added[request.id] = monotonic_ns()

    def aborted(self, ids: Iterable[str]) -> None:
        """These wait no more."""
        for id in ids:
            self._added.pop(id, None)

    def forget(self) -> None:
        """None wait."""
        self._added.clear()

    def step(self, flight: MeteredFlight, landed_ns: int, sampled: SampledTokens, events: list[Event]) -> None:
        """A step is done; ``finish`` was called at ``landed_ns``."""
        now = monotonic_ns()
        parts, new = self._parts, sampled.count
        sequences, tokens = _size(parts.flying.popleft(), new) if parts.flying else (len(sampled.tokens), new)
        _note(
            self._noted,
            self._used,
            flight.begin_ns,
            flight.begun_ns,
            flight.wait_ns,
            flight.waited_ns,
            landed_ns,
            now,
            parts.launch_ns,
            parts.sample_ns,
            sequences,
            tokens,
            new,
        )
        self._used += _NOTED_BYTES
        if self._added and _may_be_new(parts.launched, events, self._added):
            self._note_scheduled(flight.begin_ns, _planned(parts.launched) or _newest(events, self._added))
        parts.launch_ns = parts.sample_ns = 0
        if parts.launched:
            parts.launched.clear()
        if now > self._due_ns or self._used == _ROOM_BYTES:
            self._due_ns = now + _FLUSH_NS
            self.flush()

    def flush(self) -> None:
        """Write what is put by."""
        if not self._used:
            return
        begin = thread_time_ns()
        rows = _rows(np.frombuffer(self._noted, np.int64, self._used // 8).reshape(-1, _NOTED_BYTES // 8))
        self._used = 0
        self._sums += rows.sum(axis=0)
        self._count += len(rows)
        self._log.extend(rows.data.cast("B"))
        if self._scheduled_rows:
            self._lines.write(self._scheduled_rows)
            self._scheduled_rows = []
        self._spent_ns += thread_time_ns() - begin
        self._publish()

    def leave(self) -> None:
        """The process ends, perhaps in the middle of a flush, which then has logged its rows and not published them."""
        self.flush()
        self._publish()

    def close(self) -> None:
        """Write what is put by, and close the files; idempotent."""
        if not self._sink.closed:
            self.flush()
            self._sink.close()

    def _publish(self) -> None:
        count = self._count
        _, *durations, _, tokens, new = self._sums.tolist()
        requests = self._scheduled, self._queue_ns
        cost = count * self._cost_ns + self._spent_ns
        self._block.write(count, *durations, tokens, new, *requests, count, cost, self._log.dropped)

    def _note_scheduled(self, begin_ns: int, ids: Iterable[str]) -> None:
        rows = [EngineRow(id, self._added.pop(id), begin_ns) for id in ids if id in self._added]
        self._scheduled_rows += rows
        self._scheduled += len(rows)
        self._queue_ns += sum(begin_ns - row.added_ns for row in rows)


class MeteredCore:
    """Obeys the Core contract as the core inside does, and tells a StepProbe of its steps.

    Args:
        core: the core inside.
        probe: is told; dropped as soon as it fails.
        loaded: called when the core may have a runner that it did not have before.
    """

    def __init__(self, core: Core, probe: StepProbe, loaded: Callable[[], None] = no_op) -> None:
        self._core = core
        self._probe = probe
        self._loaded = loaded
        self._flight = MeteredFlight()
        self._is_step = True

    @property
    def info(self) -> ModelInfo:
        """What clients must know."""
        return self._core.info

    @property
    def calls(self) -> Mapping[str, Callable[..., Any]]:
        """Control calls by name."""
        return self._core.calls

    @property
    def has_work(self) -> bool:
        """Whether a step would do anything."""
        busy = self._core.has_work
        if not busy:
            try:
                self._probe.flush()
                self._probe.forget()
            except Exception as error:
                self._drop(error)
        return busy

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
            InvalidRequest: the core refuses it.
        """
        self._core.add(request)
        try:
            self._probe.added(request)
        except Exception as error:
            self._drop(error)

    def abort(self, ids: tuple[str, ...] | None, client: int = 0) -> list[Delta]:
        """End requests."""
        deltas = self._core.abort(ids, client)
        try:
            # Of a client that is gone, those that a step in flight keeps are forgotten when the core has nothing left to do.
            self._probe.aborted([delta.id for delta in deltas] if ids is None else ids)
        except Exception as error:
            self._drop(error)
        return deltas

    def call(self, call: Call) -> list[Event]:
        """Run one control call; in flight it waits for ``finish``."""
        return self._core.call(call)

    def begin(self) -> InFlight:
        """Start a step."""
        self._is_step = not self._core.loading
        flight = self._flight
        flight.begin_ns = monotonic_ns()
        flight.inner = self._core.begin()
        flight.begun_ns = monotonic_ns()
        return flight

    def finish(self, sampled: SampledTokens) -> list[Event]:
        """Account a step."""
        landed = monotonic_ns()
        events = self._core.finish(sampled)
        if not self._is_step:
            self._landed()
            return events
        try:
            self._probe.step(self._flight, landed, sampled, events)
        except Exception as error:
            self._drop(error)
        return events

    def _landed(self) -> None:
        """A part of a call is done: whatever waited for its first step may have been refused, and the runner may be another."""
        try:
            if not self._core.has_work:
                self._probe.forget()
            self._loaded()
        except Exception as error:
            self._drop(error)

    def close(self) -> None:
        """Close the core inside."""
        self._core.close()
        try:
            self._probe.close()
        except Exception as error:
            self._drop(error)

    def _drop(self, error: Exception) -> None:
        self._probe = dropped("steps", error)


def build(*, core: Spec, wraps: tuple[Spec, ...], folder: Path) -> Core:
    """The core that the specs describe, metered into a folder; the plain one where the folder cannot be written.

    Raises:
        whatever the core's own factories raise.
    """
    built = inner = core.build()
    for wrap in wraps:
        built = wrap.build(built)
    return attempt("steps", lambda: _meter(built, inner, folder), built)


def _meter(core: Core, inner: Core, folder: Path) -> Core:
    cost_ns(meter.rehearse)  # before the threads start that will open sockets: the engine is not ready yet
    parts = Parts()
    probe = StepProbe(Sink.of(folder, "engine"), parts, cost_ns(rehearse))
    meter_runner(inner, parts)
    weak = weakref.ref(probe)
    on_leave(lambda: (alive := weak()) and alive.leave())
    return MeteredCore(core, probe, lambda: meter_runner(inner, parts))


def _rows(noted: np.ndarray) -> np.ndarray:
    """STEP rows, int64 [steps, 9], of what was put by, int64 [steps, 11]."""
    begin, begun, wait, waited, landed, now, launch, sample, *sizes = noted.T
    return np.column_stack((begin, begun - begin - launch, launch, waited - wait - sample, sample, now - landed, *sizes))


def _size(plan: Plan, new: int) -> tuple[int, int]:
    """Sequences and tokens of a plan that gave ``new`` ones; in rounds after the first, each is run on the token before it."""
    first = sum([len(chunk.tokens) for chunk in plan.chunks])
    return len(plan.chunks), first + new - len(plan.sampling) if plan.rounds > 1 else first


def _may_be_new(plans: Collection[Plan], events: Iterable[Event], waiting: Container[str]) -> bool:
    """Whether a request was in a step for the first time: those come last, in a plan as in a Step. A glance, for most steps have none."""
    for event in events:
        if type(event) is Step and event.deltas[-1].id in waiting:
            return True
    return bool(plans) and any(plan.chunks[-1].id in waiting for plan in plans)


def _planned(plans: Iterable[Plan]) -> list[str]:
    return [chunk.id for plan in plans for chunk in plan.chunks]


def _newest(events: Iterable[Event], waiting: Container[str]) -> list[str]:
    """Requests that gained their first token, of a core without a plan to look at.

    Such a core serves in order of arrival: its newest come last in a Step, before those without a token, which were aborted. One that
    launches ahead had scheduled them in the step before.
    """
    found = []
    for event in events:
        if type(event) is Step:
            for delta in reversed(event.deltas):
                if delta.tokens:
                    if delta.id not in waiting:
                        break
                    found.append(delta.id)
    return found[::-1]


class _StillFlight:
    def wait(self) -> SampledTokens:
        return _STILL


class _StillCore:
    """A core that does nothing, so that what a step of it takes is the probe's own."""

    info: Any = None
    calls: Any = None
    has_work = True
    loading = False

    def begin(self) -> InFlight:
        return _FLIGHT

    def finish(self, sampled: SampledTokens) -> list[Event]:
        return []


_STILL, _FLIGHT = SampledTokens(((1,),) * 64), _StillFlight()


def rehearse(sink: Sink) -> Callable[[], object]:
    """A step of 64 sequences, of a core that does nothing."""
    still: Any = _StillCore()
    core = MeteredCore(still, StepProbe(sink, Parts(), 0))
    return lambda: core.finish(core.begin().wait())
