"""From two readings to what a dashboard shows: rates between them, gauges of the newer, means over both spans. Pure functions."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from mqlab.lab.readings import Reading
from mqlab.types import EngineStats, Shape
from mqlab.wire.process import RANK
from mqlab.wire.ranks import number_of

_RANK_PID = re.compile(rf"process\.({RANK}.+)\.pid$")

STEP_PARTS = ("schedule", "launch", "device", "sample", "output")


@dataclass(frozen=True)
class Mean:
    """A mean duration in seconds between the readings and since the start; None where nothing was counted."""

    recent: float | None
    overall: float | None


@dataclass(frozen=True)
class Flow:
    """One side of one direction of a channel: what went through between the readings, and messages since the start."""

    messages_per_s: float
    bytes_per_s: float
    eagain_per_s: float
    messages: int


@dataclass(frozen=True)
class Traffic:
    """One direction of a channel, seen from both ends.

    Attributes:
        name: of the channel: input, output, …
        source: the process that sends. target: the one that receives.
        depth: messages sent, by anybody who writes there, and not yet received.
        lost: the same, once nothing is under way that could still receive them: the engine has no request, and neither end moved.
    """

    name: str
    source: str
    target: str
    sent: Flow
    received: Flow
    depth: int
    lost: int


@dataclass(frozen=True)
class LoopMeter:
    """The front's event loop: how late its ticks come, the largest lag since the start, the share of time its thread computes."""

    lag: Mean
    lag_max_s: float
    utilisation: float


@dataclass(frozen=True)
class StepMeter:
    """Engine steps per second, and the share of all time that each part of a step took; the rest is between steps."""

    per_s: float
    parts: Mapping[str, float]


@dataclass(frozen=True)
class ProcessMeter:
    """A process of the run.

    Attributes:
        roles: what it does; under inproc and aio one process does both.
        cpus: CPUs used, 1.0 is one core; None where nobody looked at it.
        rss_bytes: memory; None where nobody looked at it.
    """

    roles: tuple[str, ...]
    pid: int
    cpus: float | None
    rss_bytes: int | None


@dataclass(frozen=True)
class Meters:
    """Everything at one moment.

    Attributes:
        seconds: between the two readings.
        stats: running, waiting, KV blocks.
        traffic: per channel of the shape, and per direction that was ever used; empty where nothing is recorded.
        finished: requests that ended well since the start; None where nothing is recorded. failed: those that did not, aborts apart.
        probe_cpus: CPUs that all probes together cost. probe_dropped: events that they could not write.
    """

    seconds: float
    stats: EngineStats
    generation_per_s: float
    prompt_per_s: float
    traffic: tuple[Traffic, ...]
    finished: int | None
    failed: int
    ttft: Mean
    itl: Mean
    queue: Mean
    loop: LoopMeter | None
    step: StepMeter | None
    processes: tuple[ProcessMeter, ...]
    probe_cpus: float | None
    probe_dropped: int


def measure(before: Reading, now: Reading, shape: Shape) -> Meters:
    """What happened between two readings of one engine.

    Args:
        before: the older one; with the same one twice, all rates are 0.
        shape: whose channels are looked for.
    """
    span = _Span(before, now)
    grown = {"generation": "generation_tokens", "prompt": "prompt_tokens"}
    rates = {f"{key}_per_s": (getattr(now.stats, name) - getattr(before.stats, name)) / span.seconds for key, name in grown.items()}
    return Meters(
        seconds=span.seconds,
        stats=now.stats,
        **rates,
        traffic=tuple(_traffic(span, shape)),
        finished=span.total("request.finished") if span.has("request.finished") else None,
        failed=span.total("request.failed"),
        ttft=span.mean("request.ttft_ns", "request.ttft_count"),
        itl=span.mean("request.itl_ns", "request.itl_count"),
        queue=span.mean("request.queue_ns", "request.scheduled"),
        loop=_loop(span),
        step=_step(span),
        processes=tuple(_processes(span, shape)),
        probe_cpus=span.per_s("probe.*.ns") / 1e9 if span.has("probe.*.ns") else None,
        probe_dropped=span.total("probe.*.dropped"),
    )


class _Span:
    """Sums of counters over processes: at the end of a span, and how they grew in it.

    A name with ``*`` in the middle stands for all that begin and end like it; ``role`` narrows to the processes of one role.
    """

    def __init__(self, before: Reading, now: Reading) -> None:
        self.seconds = max(now.stats.stamp_ns - before.stats.stamp_ns, 1) / 1e9
        self.idle = not any(reading.stats.running or reading.stats.waiting for reading in (before, now))
        self.now = now.counters
        self._before = before.counters

    def total(self, name: str, role: str = "") -> int:
        return sum(_sum(page, name) for _, page in self._pages(role))

    def grown(self, name: str, role: str = "") -> int:
        return sum(self._growth(writer, page, name) for writer, page in self._pages(role))

    def per_s(self, name: str, role: str = "") -> float:
        return self.grown(name, role) / self.seconds

    def has(self, name: str) -> bool:
        return any(_matches(key, name) for page in self.now.values() for key in page)

    def largest(self, name: str) -> int:
        return max((page.get(name, 0) for page in self.now.values()), default=0)

    def seen(self, role: str) -> tuple[float, int] | None:
        """CPUs and memory of a role's process, from the observer that looks at it."""
        if (found := self._observer_of(role)) is None:
            return None
        writer, page = found
        return self._growth(writer, page, f"process.{role}.cpu_ns") / 1e9 / self.seconds, page[f"process.{role}.rss_bytes"]

    def ranks(self) -> dict[str, int]:
        """The processes that share the engine's model, which write nothing themselves: their pids by role, from whoever looks at them."""
        names = {found[1] for _, page in self._pages("observer") for name in page if (found := _RANK_PID.match(name))}
        seen = {role: self._observer_of(role) for role in sorted(names, key=number_of)}
        return {role: pid for role, found in seen.items() if found and (pid := found[1].get(f"process.{role}.pid"))}

    def _observer_of(self, role: str) -> tuple[str, Mapping[str, int]] | None:
        """The page of whoever looks at a role's process: of several, the one that looked last."""
        pages = [(writer, page) for writer, page in self._pages("observer") if f"process.{role}.cpu_ns" in page]
        return max(pages, key=lambda item: self._growth(*item, "probe.process.events")) if pages else None

    def mean(self, nanoseconds: str, counted: str) -> Mean:
        return Mean(_ratio(self.grown(nanoseconds), self.grown(counted)), _ratio(self.total(nanoseconds), self.total(counted)))

    def _growth(self, writer: str, page: Mapping[str, int], name: str) -> int:
        # A process that was not there before counts from here on: what it did until now is not this span's. One that counts anew,
        # for its next client, does so too.
        return max(_sum(page, name) - _sum(self._before.get(writer, page), name), 0)

    def _pages(self, role: str) -> Iterator[tuple[str, Mapping[str, int]]]:
        return ((writer, page) for writer, page in self.now.items() if role in ("", role_of(writer)))


def role_of(writer: str) -> str:
    """The role in a writer's name: ``front-123`` is a front."""
    return writer.rpartition("-")[0]


def _matches(key: str, name: str) -> bool:
    start, star, end = name.partition("*")
    return key.startswith(start) and key.endswith(end) if star else key == name


def _sum(page: Mapping[str, int], name: str) -> int:
    return page.get(name, 0) if "*" not in name else sum(value for key, value in page.items() if _matches(key, name))


def _ratio(nanoseconds: int, counted: int) -> float | None:
    return nanoseconds / counted / 1e9 if counted > 0 else None


def _traffic(span: _Span, shape: Shape) -> Iterator[Traffic]:
    for edge in shape.edges:
        for source, target in ((edge.source, edge.target), (edge.target, edge.source)):
            direction = _direction(span, edge.name, source, target, _writers(shape, edge.name, source, target))
            forth = source == edge.source and span.has(f"socket.{edge.name}.*")
            if forth or direction.sent.messages or direction.received.messages:
                yield direction


def _writers(shape: Shape, name: str, source: str, target: str) -> set[str]:
    """Who sends to a channel's receiver: some have more than one sender, and one socket that receives."""
    return {source} | {edge.source for edge in shape.edges if (edge.name, edge.target) == (name, target)}


def _direction(span: _Span, name: str, source: str, target: str, writers: set[str]) -> Traffic:
    sent, received = _flow(span, f"socket.{name}.sent", source), _flow(span, f"socket.{name}.received", target)
    all_sent = sum(span.total(f"socket.{name}.sent.messages", role) for role in writers)
    depth = max(all_sent - received.messages, 0)  # the pages are not read at one instant
    at_rest = span.idle and not sent.messages_per_s and not received.messages_per_s
    return Traffic(name, source, target, sent, received, depth, depth if at_rest else 0)


def _flow(span: _Span, side: str, role: str) -> Flow:
    rates = (span.per_s(f"{side}.{what}", role) for what in ("messages", "bytes", "eagain"))
    return Flow(*rates, messages=span.total(f"{side}.messages", role))


def _loop(span: _Span) -> LoopMeter | None:
    if not span.has("loop.ticks"):
        return None
    wall = span.grown("loop.wall_ns")
    busy = span.grown("loop.busy_ns") / wall if wall else 0.0
    return LoopMeter(span.mean("loop.lag_ns", "loop.ticks"), span.largest("loop.lag_max_ns") / 1e9, busy)


def _step(span: _Span) -> StepMeter | None:
    if not span.has("step.count"):
        return None
    shares = {part: span.per_s(f"step.{part}_ns") / 1e9 for part in STEP_PARTS}
    # A long step is counted when it ends, in the span of its end: the parts may then sum to more than the span.
    scale = max(1.0, sum(shares.values()))
    return StepMeter(span.per_s("step.count"), {part: share / scale for part, share in shares.items()})


def _processes(span: _Span, shape: Shape) -> Iterator[ProcessMeter]:
    """In the order of the picture."""
    order = [part for name, _ in shape.processes for part in name.split(" + ")]
    roles: dict[int, list[str]] = {}
    for writer in sorted(span.now, key=lambda writer: _place(role_of(writer), order)):
        if role_of(writer) != "observer":
            roles.setdefault(int(writer.rpartition("-")[2]), []).append(role_of(writer))
    for pid, names in roles.items():
        seen = next((figures for name in names if (figures := span.seen(name))), (None, None))
        yield ProcessMeter(tuple(names), pid, *seen)
    for role, pid in span.ranks().items():
        yield ProcessMeter((role,), pid, *(span.seen(role) or (None, None)))


def _place(role: str, order: list[str]) -> int:
    return order.index(role) if role in order else len(order)
