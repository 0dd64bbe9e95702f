"""What one run of an arm measured: its figures, from the stamps of its messages."""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np

from mqlab.bench.cpu import CpuReport
from mqlab.bench.reuse import Reuse
from mqlab.record.stats import steady_window
from mqlab.types import EngineStats

NO_DIGESTS: dict[str, list[str]] = {"outputs": [], "texts": []}
"""Fields of a Run that no record keeps."""


class DeviceUse(msgspec.Struct, frozen=True):
    """Time of a simulated device, in s: how long it computed, and by how much its timers were late."""

    busy_s: float = 0.0
    oversleep_s: float = 0.0

    @staticmethod
    def between(before: EngineStats, after: EngineStats) -> DeviceUse:
        """From two readings of an engine's counters."""
        return DeviceUse((after.device_us - before.device_us) / 1e6, (after.oversleep_us - before.oversleep_us) / 1e6)


class Run(msgspec.Struct, frozen=True):
    """What one run measured; times in seconds and milliseconds as named.

    Attributes:
        cpu: CPUs used, by process.
        foreign: share of the machine that others used, 0 to 1.
        outputs: a digest of each request's tokens, in the order of the requests; empty over HTTP, which shows text alone.
        reuse: what the engine did not have to compute.
        texts: a digest of each request's text; empty where there is none.
        messages: in which the tokens came: deltas of a client, outputs of a front, events over HTTP.
        pss_mb: memory by process, when the run was over; memory_mb: of all of them.
        device: of a simulated device.
        load_busiest: CPUs that the load process used in its busiest half second; over HTTP only.
    """

    elapsed_s: float
    output_tokens: int
    output_tokens_per_s: float
    steady_tokens_per_s: float
    ttft_ms: float
    tpot_ms: float
    cpu_us_per_token: float
    cpu: dict[str, float]
    foreign: float
    outputs: list[str]
    reuse: Reuse = Reuse()
    texts: list[str] = []
    messages: int = 0
    pss_mb: dict[str, float] = {}
    memory_mb: float = 0.0
    device: DeviceUse = DeviceUse()
    load_busiest: float = 0.0


def without_digests(run: Run) -> dict[str, Any]:
    """A run for JSON: its digests were for comparing, and say nothing by themselves."""
    return {name: value for name, value in msgspec.to_builtins(run).items() if name not in NO_DIGESTS}


@dataclass
class Seen:
    """What came of the requests of a run, in their order.

    Attributes:
        begin_ns: when the run began.
        starts: when each request was handed over, or was due.
        stamps: for each request, (stamp_ns, number of new tokens) pairs.
        outputs, texts: digests.
    """

    begin_ns: int
    starts: list[int]
    stamps: list[array[int]]
    outputs: list[str] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class Beside:
    """What was measured beside the requests."""

    cpu: CpuReport
    before: EngineStats
    after: EngineStats
    pss_mb: dict[str, float]
    load_busiest: float = 0.0


def digest_ids(tokens: array[int]) -> str:
    """Of a request's token ids."""
    return hashlib.blake2b(tokens.tobytes(), digest_size=8).hexdigest()


def digest_text(pieces: Sequence[str]) -> str:
    """Of a request's text."""
    return hashlib.blake2b("".join(pieces).encode(errors="surrogatepass"), digest_size=8).hexdigest()


def summarise(seen: Seen, beside: Beside) -> Run:
    """The figures of a run."""
    events = [np.asarray(one, dtype=np.int64).reshape(-1, 2) for one in seen.stamps]
    first = np.array([one[0, 0] for one in events])
    last = np.array([one[-1, 0] for one in events])
    counts = np.array([one[:, 1].sum() for one in events])
    total, elapsed_s, cpu = int(counts.sum()), float(last.max() - seen.begin_ns) / 1e9, beside.cpu
    many = counts > 1
    tpot = (last - first)[many] / (counts - 1)[many] / 1e6
    ours = sum(share for name, share in cpu.share.items() if name != "load")
    return Run(
        elapsed_s=elapsed_s,
        output_tokens=total,
        output_tokens_per_s=total / elapsed_s,
        steady_tokens_per_s=_steady(first, last, np.concatenate(events)),
        ttft_ms=float(np.median(first - np.array(seen.starts)) / 1e6),
        tpot_ms=float(np.median(tpot)) if many.any() else 0.0,
        cpu_us_per_token=ours * cpu.elapsed_s * 1e6 / total,
        cpu=cpu.share,
        foreign=cpu.foreign,
        outputs=seen.outputs,
        reuse=Reuse.of(beside.after).since(Reuse.of(beside.before)),
        texts=seen.texts,
        messages=sum(map(len, events)),
        pss_mb=beside.pss_mb,
        memory_mb=sum(beside.pss_mb.values()),
        device=DeviceUse.between(beside.before, beside.after),
        load_busiest=beside.load_busiest,
    )


def _steady(first: np.ndarray, last: np.ndarray, events: np.ndarray) -> float:
    """Tokens a second while as many requests streamed as ever did: what waits for a seat does not count, what drains neither."""
    begin, end = steady_window(first, last)
    inside = (events[:, 0] > begin) & (events[:, 0] <= end)
    return float(events[inside, 1].sum() / max(end - begin, 1) * 1e9)
