"""The way of a token, hop by hop, and the sentence that names its longest part."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from recordings import ENGINE, FRONT, MS, at, record, step, write_counters, write_events, write_requests

from mqlab.errors import TraceError
from mqlab.record.columns import records
from mqlab.record.events import MESSAGE, STEP
from mqlab.record.trace import Trace


def hops(trace: Trace, token: int) -> dict[str, float]:
    """ms of each hop since the trace's start."""
    return {row["hop"]: round(row["seconds"] * 1e3, 6) for row in records(trace.way("a", token))}


def test_the_first_token_comes_all_the_way(tmp_path: Path) -> None:
    trace = Trace.of(record(tmp_path / "run"))
    assert hops(trace, 0) == {
        **{"arrived": 0, "added": 2, "scheduled": 5, "step began": 4, "schedule ended": 5, "launch ended": 6, "device ended": 12},
        **{"sample ended": 13, "output ended": 14, "send began": 15, "received": 16.5, "delta": 18.5},
    }
    way = trace.way("a")
    assert way["ms"].sum() == pytest.approx(18.5)
    parts = dict(zip(way["part"], way["ms"], strict=True))
    assert parts == pytest.approx(
        {"": 0, "input": 2, "queue": 3, "wait": 0, "schedule": 0, "launch": 1, "device": 6, "sample": 1, "output": 1}
        | {"send": 1, "socket": 1.5, "front": 2}
    )
    assert way.set_index("hop").loc["device ended", "writer"] == ENGINE
    assert way.set_index("hop").loc["received", "writer"] == FRONT
    assert set(way[way["how"] == "measured"]["hop"]) == {"arrived", "added", "scheduled", "delta"}


def test_a_later_token_begins_where_the_one_before_was_made(tmp_path: Path) -> None:
    trace = Trace.of(record(tmp_path / "run"))
    found = hops(trace, 1)
    assert (found["previous step ended"], found["step began"], found["received"], found["delta"]) == (14, 15, 27.5, 29.5)
    assert trace.way("a", 1)["ms"].sum() == pytest.approx(15.5)


def test_why_names_the_longest_part(tmp_path: Path) -> None:
    trace = Trace.of(record(tmp_path / "run"))
    assert trace.why("a") == (
        "Token 0 of request a reached the front 18.500 ms after its request arrived; most of that, 6.000 ms (32%), "
        "went to the device, in the step that made it (which step made it is inferred)."
    )
    assert "20.000 ms (60%), went to the front, between the message's arrival and the delta" in trace.why("a", 2)


def test_why_names_the_queue_and_earlier_steps(tmp_path: Path) -> None:
    """Scheduled into a step that gives it nothing, as a long prompt is; the next one makes its token."""
    write_events(tmp_path, ENGINE, STEP, [step(0, 0), step(40)])
    front = {"id": "a", "arrived_ns": at(-1), "first_ns": at(55), "last_ns": at(55), "output_tokens": 1}
    write_requests(tmp_path, FRONT, [{**front, "finish": "stop", "token_ns": [at(55)], "token_counts": [1]}])
    write_requests(tmp_path, ENGINE, [{"id": "a", "added_ns": at(0), "scheduled_ns": at(0.5)}])
    assert "39.500 ms (71%), went to steps before the one that made it" in Trace.of(tmp_path).why("a")
    write_requests(tmp_path, ENGINE, [{"id": "a", "added_ns": at(0), "scheduled_ns": at(39)}])
    assert "39.000 ms (70%), went to the engine's queue" in Trace.of(tmp_path).why("a")


def test_messages_that_queue_at_the_front_keep_their_steps(tmp_path: Path) -> None:
    """Three outputs have arrived when the front wakes; its three deltas come at once, each from a step of its own."""
    write_events(tmp_path, ENGINE, STEP, [step(0), step(10), step(20)])
    write_events(tmp_path, ENGINE, MESSAGE, [(at(end), n, 1, 8, 0) for n, end in enumerate((10, 20, 30))], "output.sent")
    write_events(tmp_path, FRONT, MESSAGE, [(at(end + 1), n, 1, 8, 0) for n, end in enumerate((10, 20, 30))], "output.received")
    write_counters(tmp_path, ENGINE, {"socket.output.sent.messages": 3})
    write_counters(tmp_path, FRONT, {"socket.output.received.messages": 3})
    stamps = [at(100), at(100) + 1, at(100) + 2]
    front = {"id": "a", "arrived_ns": at(-1), "first_ns": stamps[0], "last_ns": stamps[2], "output_tokens": 3}
    write_requests(tmp_path, FRONT, [{**front, "finish": "stop", "token_ns": stamps, "token_counts": [1, 1, 1]}])
    trace = Trace.of(tmp_path)
    assert [hops(trace, token)["received"] for token in range(3)] == [12, 22, 32]
    assert "89.000 ms" in trace.why("a", 0) and "the front" in trace.why("a", 0)


def record_relay(folder: Path) -> Trace:
    """Three steps of 10 ms, each sent to a detokenizer at once, which has it 1 ms later, takes 2 ms, and sends it on in another one.

    The front writes to the detokenizer, too, and the engine to the front: neither is a step's message.
    """
    relay, ends = "detokenizer-13", (10, 20, 30)
    write_events(folder, ENGINE, STEP, [step(end - 10) for end in ends])
    write_events(folder, ENGINE, MESSAGE, [(at(end), n, 1, 8, 0) for n, end in enumerate(ends)], "tokens.sent")
    write_events(folder, ENGINE, MESSAGE, [(at(3), 0, 1, 8, 0)], "text.sent")
    write_events(folder, FRONT, MESSAGE, [(at(-1), 0, 1, 8, 0)], "tokens.sent")
    came = sorted([at(0), *(at(end + 1) for end in ends)])
    write_events(folder, relay, MESSAGE, [(stamp, n, 1, 8, 0) for n, stamp in enumerate(came)], "tokens.received")
    write_events(folder, relay, MESSAGE, [(at(end + 4), n, 1, 9, MS) for n, end in enumerate(ends)], "text.sent")
    received = [at(4), *(at(end + 5) for end in ends)]
    write_events(folder, FRONT, MESSAGE, [(stamp, n, 1, 9, 0) for n, stamp in enumerate(received)], "text.received")
    write_counters(folder, ENGINE, {"socket.tokens.sent.messages": 3, "socket.text.sent.messages": 1})
    write_counters(folder, relay, {"socket.tokens.received.messages": 4, "socket.text.sent.messages": 3})
    write_counters(folder, FRONT, {"socket.tokens.sent.messages": 1, "socket.text.received.messages": 4})
    deltas = [at(end + 6) for end in ends]
    front = {"id": "a", "arrived_ns": at(-1), "first_ns": deltas[0], "last_ns": deltas[2], "output_tokens": 3}
    write_requests(folder, FRONT, [{**front, "finish": "stop", "token_ns": deltas, "token_counts": [1, 1, 1]}])
    return Trace.of(folder)


def test_a_process_between_engine_and_front_is_on_the_way(tmp_path: Path) -> None:
    trace = record_relay(tmp_path)
    for token, end in enumerate((10, 20, 30)):
        last = records(trace.way("a", token))[-5:]
        assert [row["hop"] for row in last] == ["send began", "came between", "went on", "received", "delta"]
        assert [row["stamp_ns"] for row in last] == [at(end + later) for later in (0, 1, 3, 5, 6)]
        assert [row["part"] for row in last] == ["send", "socket", "relay", "socket", "front"]
        assert [row["writer"] for row in last] == [ENGINE, "detokenizer-13", "detokenizer-13", FRONT, FRONT]


def test_one_process_has_no_socket_on_the_way(tmp_path: Path) -> None:
    write_events(tmp_path, "engine-11", STEP, [step(0)])
    front = {"id": "a", "arrived_ns": at(-1), "first_ns": at(11), "last_ns": at(11), "output_tokens": 2}
    write_requests(tmp_path, FRONT, [{**front, "finish": "stop", "token_ns": [at(11)], "token_counts": [2]}])
    trace = Trace.of(tmp_path)
    assert list(hops(trace, 0))[-2:] == ["output ended", "delta"] and hops(trace, 1) == hops(trace, 0)
    assert records(trace.way("a"))[-1]["part"] == "engine to front"


def test_without_steps_only_what_the_front_saw_is_told(tmp_path: Path) -> None:
    front = {"id": "a", "arrived_ns": at(0), "first_ns": at(3), "last_ns": at(7), "output_tokens": 2}
    write_requests(tmp_path, FRONT, [{**front, "finish": "stop", "token_ns": [at(3), at(7)], "token_counts": [1, 1]}])
    trace = Trace.of(tmp_path)
    assert hops(trace, 0) == {"arrived": 0, "delta": 3}
    assert hops(trace, 1) == {"previous delta": 3, "delta": 7}
    assert "inferred" not in trace.why("a", 1) and "4.000 ms after the delta before" in trace.why("a", 1)


def test_unknown_requests_and_tokens_are_refused(tmp_path: Path) -> None:
    folder = record(tmp_path / "run")
    write_requests(folder, "engine-12", [{"id": "b", "added_ns": at(0), "scheduled_ns": at(1)}])
    trace = Trace.of(folder)
    with pytest.raises(TraceError, match=r"no request 'z' in this trace; the first of 2 are \['a', 'b'\]"):
        trace.way("z")
    with pytest.raises(TraceError, match="token 3 of request 'a' does not exist: it has tokens 0 to 2"):
        trace.why("a", 3)
    with pytest.raises(TraceError, match="'b' has no tokens at the front: it is not finished"):
        trace.way("b")


@settings(max_examples=25, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 9), st.integers(0, 9), st.integers(0, 9)), min_size=1, max_size=6))
def test_hops_add_up_whatever_the_times(tmp_path_factory: pytest.TempPathFactory, tokens: list[tuple[int, int, int]]) -> None:
    """Steps one after the other, each output sent, moved and looked at with some delay, in order."""
    folder = tmp_path_factory.mktemp("run")
    steps, sent, received, deltas = [], [], [], []
    now = 0
    for long, transit, wait in tokens:
        steps.append((at(now), 0, 0, long * MS, 0, 0, 1, 1, 1))
        now += long
        sent.append(at(now))
        received.append(max([at(now + transit), *received[-1:]]))
        deltas.append(max(received[-1] + wait * MS, *(stamp + 1 for stamp in deltas[-1:]), 0))
    write_events(folder, ENGINE, STEP, steps)
    write_events(folder, ENGINE, MESSAGE, [(stamp, n, 1, n, 0) for n, stamp in enumerate(sent)], "output.sent")
    write_events(folder, FRONT, MESSAGE, [(stamp, n, 1, n, 0) for n, stamp in enumerate(received)], "output.received")
    write_counters(folder, ENGINE, {"socket.output.sent.messages": len(tokens)})
    write_counters(folder, FRONT, {"socket.output.received.messages": len(tokens)})
    row = {"id": "a", "arrived_ns": at(0), "first_ns": deltas[0], "last_ns": deltas[-1], "output_tokens": len(tokens), "finish": "stop"}
    write_requests(folder, FRONT, [{**row, "token_ns": deltas, "token_counts": [1] * len(tokens)}])
    trace = Trace.of(folder)
    for token in range(len(tokens)):
        way = trace.way("a", token)
        assert (way["ms"] >= 0).all()
        assert way["ms"].sum() == pytest.approx((deltas[token] - way["stamp_ns"].iloc[0]) / 1e6)
        (made,) = way[way["hop"] == "device ended"]["stamp_ns"]
        assert made == sent[token], "every step made one token, so which one is no question"
