"""Where an engine's step spends its time, and how long a request waits for its first one."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Container, Iterable, Mapping
from itertools import chain
from pathlib import Path
from time import monotonic_ns
from typing import Any

from mqlab.engine.core import Core
from mqlab.plan import InFlight, Plan, Runner, SampledTokens
from mqlab.probes.base import attempt, dropped
from mqlab.probes.cost import cost_ns
from mqlab.probes.sink import Sink
from mqlab.record.events import STEP
from mqlab.record.requests import EngineRow
from mqlab.types import Call, Delta, Event, ModelInfo, Reply, Request, Step
from mqlab.wire.spec import Spec

_PARTS = ("schedule_ns", "launch_ns", "device_ns", "sample_ns", "output_ns")


class Parts:
    """What the runner's wrappers tell. A core may launch a step while another is in flight, or several rounds as one step.

    Attributes:
        flying: plans that were launched and have not landed, oldest first; none where no runner tells.
        launched: those of them that were launched since the last step.
        launch_ns: in launches since the last step; sample_ns: in the sampler since then.
    """

    def __init__(self) -> None:
        self.flying: deque[Plan] = deque()
        self.launched: list[Plan] = []
        self.launch_ns = self.sample_ns = 0


class MeteredRunner:
    """Times ``launch`` of the runner inside."""

    def __init__(self, runner: Runner, parts: Parts) -> None:
        self._runner = runner
        self._parts = parts
        self.info: ModelInfo = runner.info

    def launch(self, plan: Plan) -> InFlight:
        """Start one step."""
        begin = monotonic_ns()
        flight = self._runner.launch(plan)
        parts = self._parts
        parts.launch_ns += monotonic_ns() - begin
        parts.flying.append(plan)
        parts.launched.append(plan)
        return flight

    def close(self) -> None:
        """Close the runner inside."""
        self._runner.close()


class MeteredFlight:
    """Times the wait for a step. ``scheduled_ns`` is how long ``begin`` took, with the launch."""

    __slots__ = ("_inner", "begin_ns", "scheduled_ns", "wait_ns")

    def __init__(self, inner: InFlight, begin_ns: int) -> None:
        self._inner = inner
        self.begin_ns = begin_ns
        self.scheduled_ns = monotonic_ns() - begin_ns
        self.wait_ns = 0

    def wait(self) -> SampledTokens:
        """The inner flight's tokens."""
        begin = monotonic_ns()
        sampled = self._inner.wait()
        self.wait_ns = monotonic_ns() - begin
        return sampled


class StepProbe:
    """Counters, events and lines about steps. Same thread rules as the core.

    Args:
        cost_ns: what one step costs.
    """

    def __init__(self, sink: Sink, parts: Parts, cost_ns: int) -> None:
        self._sink = sink
        self._parts = parts
        self._cost_ns = cost_ns
        names = [f"step.{name}" for name in ("count", *_PARTS, "tokens", "new_tokens")]
        names += ["request.scheduled", "request.queue_ns", "probe.steps.events", "probe.steps.ns", "probe.steps.dropped"]
        self._block = sink.block(*names)
        self._log = sink.log(STEP)
        self._lines = sink.lines()
        self._added: dict[str, int] = {}
        self._count = self._tokens = self._new = self._scheduled = self._queue = 0
        self._schedule = self._launch = self._device = self._sample = self._output = 0

    def added(self, request: Request) -> None:
        """A request waits for its first step."""
        self._added[request.id] = monotonic_ns()

    def aborted(self, ids: tuple[str, ...]) -> None:
        """These wait no more."""
        for id in ids:
            self._added.pop(id, None)

    def step(self, flight: MeteredFlight, landed_ns: int, sampled: SampledTokens, events: list[Event]) -> None:
        """A step is done; its tokens were there at ``landed_ns``."""
        output = monotonic_ns() - landed_ns
        parts, new = self._parts, len(tuple(chain.from_iterable(sampled.tokens)))
        launch, sample = parts.launch_ns, parts.sample_ns
        parts.launch_ns = parts.sample_ns = 0
        schedule, device = flight.scheduled_ns - launch, flight.wait_ns - sample
        sequences, tokens = _size(parts.flying.popleft(), new) if parts.flying else (len(sampled.tokens), new)
        self._log.append(flight.begin_ns, schedule, launch, device, sample, output, sequences, tokens, new)
        self._count = count = self._count + 1
        self._schedule += schedule
        self._launch += launch
        self._device += device
        self._sample += sample
        self._output += output
        self._tokens += tokens
        self._new += new
        if self._added:
            self._note_scheduled(flight.begin_ns, _planned(parts.launched) or _newest(events, self._added))
        parts.launched.clear()
        durations = self._schedule, self._launch, self._device, self._sample, self._output
        requests = self._scheduled, self._queue
        self._block.write(count, *durations, self._tokens, self._new, *requests, count, count * self._cost_ns, self._log.dropped)

    def close(self) -> None:
        """Close the files."""
        self._sink.close()

    def _note_scheduled(self, begin_ns: int, ids: Iterable[str]) -> None:
        rows = [EngineRow(id, self._added.pop(id), begin_ns) for id in ids if id in self._added]
        if rows:
            self._lines.write(rows)
            self._scheduled += len(rows)
            self._queue += sum(begin_ns - row.added_ns for row in rows)


class MeteredCore:
    """Obeys the Core contract as the core inside does, and tells a StepProbe of its steps.

    Args:
        core: the core inside.
        probe: is told; dropped as soon as it fails.
    """

    def __init__(self, core: Core, probe: StepProbe) -> None:
        self._core = core
        self._probe = probe
        self._flight: MeteredFlight | None = None
        self.info: ModelInfo = core.info
        self.calls: Mapping[str, Callable[..., Any]] = core.calls

    @property
    def has_work(self) -> bool:
        """Whether a step would do anything."""
        return self._core.has_work

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

    def abort(self, ids: tuple[str, ...], client: int = 0) -> list[Delta]:
        """End requests."""
        deltas = self._core.abort(ids, client)
        try:
            self._probe.aborted(ids)
        except Exception as error:
            self._drop(error)
        return deltas

    def call(self, call: Call) -> Reply | None:
        """Run one control call; in flight it waits for ``finish``."""
        return self._core.call(call)

    def begin(self) -> InFlight:
        """Start a step."""
        begin = monotonic_ns()
        flight = self._flight = MeteredFlight(self._core.begin(), begin)
        return flight

    def finish(self, sampled: SampledTokens) -> list[Event]:
        """Account a step."""
        landed = monotonic_ns()
        events = self._core.finish(sampled)
        flight = self._flight
        assert flight is not None
        try:
            self._probe.step(flight, landed, sampled, events)
        except Exception as error:
            self._drop(error)
        return events

    def close(self) -> None:
        """Close the core inside."""
        self._core.close()
        self._probe.close()

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
    parts = Parts()
    metered = MeteredCore(core, StepProbe(Sink.of(folder, "engine"), parts, cost_ns(rehearse)))
    meter_runner(inner, parts)
    return metered


def meter_runner(core: Any, parts: Parts) -> None:
    """Time the runner and the sampler of a core, where it has any."""
    runner = getattr(core, "runner", None)
    if runner is None:
        return
    if hasattr(runner, "sampler"):
        runner.sampler = _timed(runner.sampler, parts)
    core.runner = MeteredRunner(runner, parts)


def _timed(sampler: Callable[..., tuple[int, ...]], parts: Parts) -> Callable[..., tuple[int, ...]]:
    def sample(*args: Any) -> tuple[int, ...]:
        begin = monotonic_ns()
        tokens = sampler(*args)
        parts.sample_ns += monotonic_ns() - begin
        return tokens

    return sample


def _size(plan: Plan, new: int) -> tuple[int, int]:
    """Sequences and tokens of a plan that gave ``new`` ones; in rounds after the first, each is run on the token before it."""
    return len(plan.chunks), sum(len(chunk.tokens) for chunk in plan.chunks) + new - len(plan.sampling)


def _planned(plans: list[Plan]) -> list[str]:
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

    def begin(self) -> InFlight:
        return _FLIGHT

    def finish(self, sampled: SampledTokens) -> list[Event]:
        return []


_STILL, _FLIGHT = SampledTokens(()), _StillFlight()


def rehearse(sink: Sink) -> Callable[[], object]:
    """A step of a core that does nothing."""
    still: Any = _StillCore()
    core = MeteredCore(still, StepProbe(sink, Parts(), 0))
    return lambda: core.finish(core.begin().wait())
