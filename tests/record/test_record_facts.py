"""What is worked out of a trace: shares, rates, edges, lags, costs; against a run made up by hand."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from recordings import ENGINE, FRONT, MS, T0, at, record, step, write_counters, write_events, write_requests

from mqlab.record.columns import records
from mqlab.record.edges import flows, transits
from mqlab.record.events import LOOP, MESSAGE, STEP
from mqlab.record.trace import Trace


@pytest.fixture
def trace(tmp_path: Path) -> Trace:
    return Trace.of(record(tmp_path / "run"))


def shares(trace: Trace) -> dict[str, float]:
    return {row["part"]: row["share"] for row in records(trace.steps())}


def test_shares_of_steps_add_up(trace: Trace) -> None:
    """Three steps of 10 ms in 32 ms, 1 ms between them."""
    found = shares(trace)
    assert found == pytest.approx(
        {"schedule": 3 / 32, "launch": 3 / 32, "device": 18 / 32, "sample": 3 / 32, "output": 3 / 32, "gap": 2 / 32, "idle": 0}
    )
    (device,) = (row for row in records(trace.steps()) if row["part"] == "device")
    assert (device["steps"], device["total_ms"], device["mean_us"], device["p50_us"], device["p99_us"]) == (3, 18, 6000, 6000, 6000)


def test_time_without_requests_is_idle_and_not_a_gap(tmp_path: Path) -> None:
    """Between two steps of 10 ms lie 80: a request of 15 ms reaches 5 into it, one that goes on arrives 30 before its end."""
    write_events(tmp_path, ENGINE, STEP, [step(0), step(90)])
    write_requests(tmp_path, FRONT, [{"id": "a", "arrived_ns": at(0), "last_ns": at(15)}])
    write_requests(tmp_path, ENGINE, [{"id": "a", "added_ns": at(0)}, {"id": "b", "added_ns": at(60)}])
    found = shares(Trace.of(tmp_path))
    assert (found["gap"], found["idle"]) == pytest.approx((0.35, 0.45))


def test_without_requests_all_time_between_steps_is_a_gap(tmp_path: Path) -> None:
    write_events(tmp_path, ENGINE, STEP, [step(0), step(30)])
    found = shares(Trace.of(tmp_path))
    assert (found["gap"], found["idle"]) == pytest.approx((0.5, 0))


@settings(max_examples=25, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 50), st.integers(0, 50)), min_size=1, max_size=8), st.data())
def test_shares_of_any_run_add_up_to_one(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[int, int]], data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("run")
    ends = np.cumsum([long + gap for long, gap in steps])
    rows = [(at(int(end) - long - gap), 0, 0, long * MS, 0, 0, 1, 1, 1) for (long, gap), end in zip(steps, ends, strict=True)]
    write_events(folder, ENGINE, STEP, rows)
    spans = data.draw(st.lists(st.tuples(st.integers(0, 200), st.integers(0, 100)), max_size=4))
    requests = [{"id": str(n), "arrived_ns": at(begin), "last_ns": at(begin + long)} for n, (begin, long) in enumerate(spans)]
    write_requests(folder, FRONT, requests)
    found = shares(Trace.of(folder))
    assert sum(found.values()) == pytest.approx(1)
    assert min(found.values()) >= 0


def test_latency_has_a_row_a_finished_request(trace: Trace) -> None:
    (row,) = records(trace.latency())
    assert (row["run"], row["id"], row["finish"], row["output_tokens"]) == ("run", "a", "length", 3)
    assert [row[name] for name in ("arrived_s", "queue_ms", "ttft_ms", "tpot_ms", "e2el_ms", "itl_max_ms")] == pytest.approx(
        [0, 3, 18.5, 20, 58.5, 29]
    )


def test_rates_over_time(trace: Trace) -> None:
    found = trace.throughput(0.02)
    assert found["seconds"].tolist() == pytest.approx([0, 0.02, 0.04])
    assert found["new_tokens_per_s"].tolist() == pytest.approx([100, 50, 0])
    assert found["output_tokens_per_s"].tolist() == pytest.approx([50, 50, 1 / 0.0185])
    assert found["arrived_per_s"].tolist() == pytest.approx([50, 0, 0])
    assert found["finished_per_s"].tolist() == pytest.approx([0, 0, 1 / 0.0185])
    assert found["running"].tolist() == [1, 1, 1]
    with pytest.raises(ValueError, match="interval=0"):
        trace.throughput(0)


@pytest.mark.parametrize("interval", [0.001, 0.0013, 0.01, 0.0585, 1.0])
def test_no_token_is_lost_between_intervals(trace: Trace, interval: float) -> None:
    found = trace.throughput(interval)
    widths = np.diff(np.append(found["seconds"], trace.seconds))
    for column, total in (("new_tokens_per_s", 3), ("output_tokens_per_s", 3), ("arrived_per_s", 1), ("finished_per_s", 1)):
        assert (found[column] * widths).sum() == pytest.approx(total)


def test_edges_tell_both_ends(trace: Trace) -> None:
    into, out = records(trace.edges())
    assert (into["edge"], into["sender"], into["receiver"], into["sent"], into["received"], into["lost"]) == (
        "input",
        FRONT,
        ENGINE,
        1,
        1,
        0,
    )
    assert (out["sender"], out["receiver"], out["sent"], out["bytes"], out["frames"], out["send_eagain"]) == (ENGINE, FRONT, 3, 123, 3, 4)
    assert (out["send_us"], out["receive_us"], out["transit_p50_us"], out["transit_p99_us"]) == pytest.approx((500, 250, 1500, 1500))


def test_losses_are_counted_and_end_the_matching(tmp_path: Path) -> None:
    """The second of four messages is lost: from there on the receiver's numbers are one behind, which sizes give away."""
    sizes = [10, 20, 30, 40]
    write_events(tmp_path, ENGINE, MESSAGE, [(at(n), n, 1, size, 0) for n, size in enumerate(sizes)], "data.sent")
    arrived = [size for n, size in enumerate(sizes) if n != 1]
    write_events(tmp_path, FRONT, MESSAGE, [(at(n + 1), n, 1, size, 0) for n, size in enumerate(arrived)], "data.received")
    write_counters(tmp_path, ENGINE, {"socket.data.sent.messages": 4, "socket.data.sent.bytes": 100})
    write_counters(tmp_path, FRONT, {"socket.data.received.messages": 3})
    trace = Trace.of(tmp_path)
    (row,) = records(trace.edges())
    assert (row["sent"], row["received"], row["lost"], row["transit_p50_us"]) == (4, 3, 1, 1000)
    assert transits(trace, flows(trace)[0])["seq"].tolist() == [0]
    assert "1 lost or under way" in repr(trace)


def test_an_address_that_only_one_end_counts_does_not_end_the_matching(tmp_path: Path) -> None:
    for writer, direction, more in ((FRONT, "sent", 2), (ENGINE, "received", 0)):
        write_counters(tmp_path, writer, {f"socket.input.{direction}.messages": 3})
        rows = [(at(2 * n), n, 1, 10 * n + more, MS if more else 0) for n in range(3)]
        write_events(tmp_path, writer, MESSAGE, rows, f"input.{direction}")
    (row,) = records(Trace.of(tmp_path).edges())
    assert (row["transit_p50_us"], row["transit_p99_us"]) == (1000, 1000)


def test_both_directions_of_one_socket_stay_apart(tmp_path: Path) -> None:
    write_counters(tmp_path, FRONT, {"socket.data.sent.messages": 5, "socket.data.received.messages": 2})
    write_counters(tmp_path, ENGINE, {"socket.data.sent.messages": 3, "socket.data.received.messages": 5})
    found = [(row["sender"], row["receiver"], row["sent"], row["received"], row["lost"]) for row in records(Trace.of(tmp_path).edges())]
    assert found == [(ENGINE, FRONT, 3, 2, 1), (FRONT, ENGINE, 5, 5, 0)]


def test_several_senders_are_summed_and_not_matched(tmp_path: Path) -> None:
    for writer, count in (("front-1", 2), ("front-2", 3)):
        write_counters(tmp_path, writer, {"socket.input.sent.messages": count})
        write_events(tmp_path, writer, MESSAGE, [(at(n), n, 1, 8, 0) for n in range(count)], "input.sent")
    write_counters(tmp_path, ENGINE, {"socket.input.received.messages": 4})
    write_events(tmp_path, ENGINE, MESSAGE, [(at(n + 1), n, 1, 8, 0) for n in range(4)], "input.received")
    (row,) = records(Trace.of(tmp_path).edges())
    assert (row["sender"], row["receiver"], row["sent"], row["received"], row["lost"]) == ("front-1, front-2", ENGINE, 5, 4, 1)
    assert math.isnan(row["transit_p50_us"])


def test_an_end_without_counters_leaves_losses_unknown(tmp_path: Path) -> None:
    write_counters(tmp_path, ENGINE, {"socket.output.sent.messages": 4, "socket.health.sent.messages": 0})
    trace = Trace.of(tmp_path)
    (row,) = records(trace.edges())
    assert (row["edge"], row["receiver"], row["sent"]) == ("output", "", 4)
    assert trace.edges()["lost"].isna().all()
    assert "unknown: messages 4, losses unknown" in repr(trace)


def test_loops_and_probes(tmp_path: Path) -> None:
    write_events(tmp_path, FRONT, LOOP, [(T0 + n * MS, n * MS // 100, MS, MS // 4, 0, 0) for n in range(101)])
    write_counters(
        tmp_path,
        FRONT,
        {
            "probe.loop.events": 101,
            "probe.loop.ns": MS,
            "probe.loop.dropped": 0,
            "probe.socket.input.sent.events": 7,
            "probe.socket.input.sent.ns": 2 * MS,
            "probe.socket.input.sent.dropped": 5,
        },
    )
    trace = Trace.of(tmp_path)
    (loop,) = records(trace.loops())
    assert (loop["writer"], loop["ticks"]) == (FRONT, 101)
    assert [loop[name] for name in ("lag_p50_ms", "lag_p99_ms", "lag_max_ms", "busy")] == pytest.approx([0.5, 0.99, 1.0, 0.25])
    first, second = records(trace.probes())
    assert (first["probe"], first["events"], first["cost_ms"], first["share"]) == ("loop", 101, 1.0, pytest.approx(0.01))
    assert (second["probe"], second["dropped"], second["share"]) == ("socket.input.sent", 5, pytest.approx(0.02))
    assert "3.00 ms, 3.00% of the time; 5 events not written" in repr(trace)
    assert trace.meta["probe_overhead"][tmp_path.name] == {FRONT: pytest.approx(0.03)}
