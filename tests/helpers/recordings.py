"""Recordings made up to the nanosecond, so that every table worked out from them has known values."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path

from mqlab.record.events import LOOP, MESSAGE, PROCESS, STEP, EventLog, Kind
from mqlab.wire.counters import CounterPage

MS = 1_000_000
T0 = 9_007_199_254_740_993
"""Where made-up clocks begin: odd and above 2**53, so that a stamp which passes through a float is seen."""

FRONT, ENGINE = "front-11", "engine-12"


def write_events(folder: Path, writer: str, kind: Kind, rows: Iterable[Iterable[int]], label: str = "") -> None:
    """A finished file of events."""
    log = EventLog(folder, writer, kind, label)
    for row in rows:
        log.append(*row)
    log.close()


def write_counters(folder: Path, writer: str, values: Mapping[str, int]) -> None:
    """A page of counters."""
    page = CounterPage.create(folder / f"{writer}.counters")
    page.block(*values).write(*values.values())
    page.close()


def write_requests(folder: Path, writer: str, rows: Iterable[Mapping[str, object]]) -> None:
    """A file of requests."""
    (folder / f"{writer}.requests.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def at(ms: float) -> int:
    """A stamp so many ms after T0."""
    return T0 + round(ms * MS)


def step(begin_ms: float, sequences: int = 1) -> tuple[int, ...]:
    """A row of 10 ms: schedule 1, launch 1, device 6, sample 1, output 1."""
    return (at(begin_ms), MS, MS, 6 * MS, MS, MS, sequences, sequences, sequences)


def record(folder: Path) -> Path:
    """One request of three tokens through two processes.

    It arrives at 0 ms, is added at 2, scheduled at 5 and its steps begin at 4, 15 and 26. Each step's output is sent 1 ms after its
    end, in a call of 0.5 ms, arrives 1 ms after that, and is a delta 2 ms later; the last one waits for 20 ms at the front.
    """
    folder.mkdir(parents=True, exist_ok=True)
    sent = [at(begin + 10 + 1.5) for begin in (4, 15, 26)]
    received = [stamp + MS for stamp in sent]
    deltas = [received[0] + 2 * MS, received[1] + 2 * MS, received[2] + 20 * MS]
    write_events(folder, ENGINE, STEP, [step(4), step(15), step(26)])
    write_events(folder, ENGINE, MESSAGE, [(at(1.9), 0, 2, 100, 0)], "input.received")
    write_events(folder, FRONT, MESSAGE, [(at(0.5), 0, 2, 100, MS // 10)], "input.sent")
    write_events(folder, ENGINE, MESSAGE, [(stamp, seq, 1, 40 + seq, MS // 2) for seq, stamp in enumerate(sent)], "output.sent")
    write_events(folder, FRONT, MESSAGE, [(stamp, seq, 1, 40 + seq, MS // 4) for seq, stamp in enumerate(received)], "output.received")
    write_events(folder, FRONT, LOOP, [(at(10 * tick), tick * MS, 10 * MS, 4 * MS, 1, 0) for tick in range(1, 6)])
    write_events(folder, "observer-13", PROCESS, [(at(7), 12, 5 * MS, 2**20, 9, 1, 2, 3)], "engine")
    write_counters(folder, FRONT, {**_socket("input.sent", 1, 100, 2, MS // 10), **_socket("output.received", 3, 123, 3, 3 * MS // 4)})
    write_counters(
        folder,
        ENGINE,
        {
            **_socket("input.received", 1, 100, 2, 0),
            **_socket("output.sent", 3, 123, 3, 3 * MS // 2, eagain=4),
            "probe.step.events": 3,
            "probe.step.ns": MS // 2,
            "probe.step.dropped": 0,
        },
    )
    front = {"id": "a", "arrived_ns": at(0), "first_ns": deltas[0], "last_ns": deltas[2], "prompt_tokens": 5, "output_tokens": 3}
    write_requests(folder, FRONT, [{**front, "finish": "length", "token_ns": deltas, "token_counts": [1, 1, 1]}])
    write_requests(folder, ENGINE, [{"id": "a", "added_ns": at(2), "scheduled_ns": at(5)}])
    return folder


def _socket(end: str, messages: int, size: int, frames: int, ns: int, eagain: int = 0) -> dict[str, int]:
    counts = {"messages": messages, "bytes": size, "frames": frames, "ns": ns, "eagain": eagain}
    return {f"socket.{end}.{name}": value for name, value in counts.items()}
