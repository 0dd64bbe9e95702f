"""Virtual time: the real scheduler and KV blocks over a simulated device, faster than any clock goes.

One process and one loop: requests come in when the virtual clock has reached their time, a step is waited for by setting the clock on to
its end. What happens between two steps takes no time, so what comes out is what the device allows, whatever the layout: the capacity
that a real engine is held against. The same requests give the same times to the nanosecond, on every machine.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from mqlab.bench.figures import Timed, measure
from mqlab.bench.load.messages import Record
from mqlab.bench.summary import Spread, peak_concurrency, spreads
from mqlab.clock import VirtualClock
from mqlab.config import EngineConfig
from mqlab.engine.core import apply, step
from mqlab.engine.engine_core import EngineCore
from mqlab.model.sim import build
from mqlab.types import EngineStats, Event, Request, Step

PERCENTILES = (50.0, 90.0, 99.0)


@dataclass(frozen=True)
class VirtualRun:
    """What became of requests in virtual time.

    Attributes:
        requests: the figures of each, in their order; those that the engine refused have an error.
        stats: the engine's counters at the end.
        arrived_s: when the last one came.
    """

    requests: Sequence[Timed]
    stats: EngineStats
    arrived_s: float

    @property
    def good(self) -> list[Timed]:
        """Requests that got their answer."""
        return [one for one in self.requests if one.ok]

    @property
    def duration(self) -> float:
        """From the start to the end of the last request, in s."""
        return max((one.end_s for one in self.requests), default=0.0)

    @property
    def output_tokens(self) -> int:
        """New tokens of all."""
        return sum(one.output_tokens for one in self.good)

    @property
    def request_throughput(self) -> float:
        """Answers/s."""
        return len(self.good) / self.duration if self.duration else 0.0

    @property
    def output_throughput(self) -> float:
        """New tokens/s."""
        return self.output_tokens / self.duration if self.duration else 0.0

    @property
    def device_share(self) -> float:
        """How much of the time the device was busy."""
        return self.stats.device_us / 1e6 / self.duration if self.duration else 0.0

    @property
    def backlog(self) -> float:
        """The share of requests that had no token yet when the last one came: what an engine that keeps up has next to none of."""
        waiting = sum(not one.ok or float(one.event_s[0]) > self.arrived_s for one in self.requests if one.due_s < self.arrived_s)
        return waiting / len(self.requests)

    @property
    def median_life_s(self) -> float:
        """How long a request takes from when it is due to its last token; 0 where none got an answer."""
        return float(np.median([one.e2el for one in self.good])) if self.good else 0.0

    @property
    def spreads(self) -> dict[str, Spread]:
        """Latencies by name, in ms, from when a request was due."""
        return spreads(self.requests, PERCENTILES)

    def as_record(self) -> dict[str, Any]:
        """For JSON: the keys of ``vllm bench serve`` where it has them."""
        latencies: dict[str, Any] = {}
        for name in ("ttft", "tpot", "itl", "e2el"):
            latencies |= self.spreads[name].as_record(name)
        return {
            "duration": self.duration,
            "completed": len(self.good),
            "total_input_tokens": sum(one.input_tokens for one in self.good),
            "total_output_tokens": self.output_tokens,
            "request_throughput": self.request_throughput,
            "output_throughput": self.output_throughput,
            "max_concurrent_requests": peak_concurrency(self.requests),
            **latencies,
            "steps": self.stats.steps,
            "preemptions": self.stats.preemptions,
            "device_share": self.device_share,
            "backlog": self.backlog,
        }

    def __repr__(self) -> str:
        ttft, tpot = self.spreads["ttft"].median or 0.0, self.spreads["tpot"].median or 0.0
        return (
            f"VirtualRun({len(self.good)} of {len(self.requests)} requests in {self.duration:.3f} s: {self.output_throughput:.1f} output "
            f"tokens/s, median TTFT {ttft:.1f} ms, TPOT {tpot:.2f} ms, {self.stats.steps} steps)"
        )


def simulate(
    engine: EngineConfig, requests: Sequence[Request], at_s: Sequence[float], *, on_step: Callable[[int], object] | None = None
) -> VirtualRun:
    """Run requests through an engine in virtual time.

    Args:
        engine: of a simulated model, ``sim:<model>@<device>``.
        requests: with ids of their own.
        at_s: seconds after the start at which each of them comes, not below 0.
        on_step: called after each step with the number of requests that have ended so far.

    Raises:
        ConfigError, ModelError: the engine cannot be made.
    """
    clock = VirtualClock()
    core = EngineCore(build(engine, clock), engine, clock)
    dues = [_ns(at) for at in at_s]
    records = {one.id: Record(number, due, due, due) for number, (one, due) in enumerate(zip(requests, dues, strict=True))}
    coming = deque(sorted(requests, key=lambda request: records[request.id].due_ns))
    ended = 0
    try:
        while coming or core.has_work:
            if not core.has_work:
                clock.sleep_until(records[coming[0].id].due_ns)
            while coming and records[coming[0].id].due_ns <= clock.now_ns():
                ended += _note(records, apply(core, coming.popleft()), clock.now_ns())
            if core.has_work:
                ended += _note(records, step(core), clock.now_ns())
            if on_step is not None:
                on_step(ended)
        return VirtualRun(_figures(requests, records), core.calls["stats"](), max(dues, default=0) / 1e9)
    finally:
        core.close()


def _figures(requests: Sequence[Request], records: dict[str, Record]) -> list[Timed]:
    return [measure(records[one.id], 0, from_schedule=True, prompt_tokens=len(one.prompt)) for one in requests]


def _note(records: dict[str, Record], events: Sequence[Event], now_ns: int) -> int:
    """Write down who gained tokens, and say how many ended."""
    ended = 0
    for event in events:
        for delta in event.deltas if type(event) is Step else ():
            record = records[delta.id]
            if delta.tokens:
                record.event_ns.append(now_ns)
                record.event_tokens.append(len(delta.tokens))
            if delta.finish is not None:
                record.end_ns, ended = now_ns, ended + 1
                record.error = delta.error.message if delta.error is not None else ""
    return ended


def _ns(seconds: float) -> int:
    return round(float(seconds) * 1e9)
