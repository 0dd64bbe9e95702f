"""The arithmetic of the load generator, on stamps that nobody waited for."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqlab.bench.figures import Timed, measure
from mqlab.bench.load.answer import Answer, AnswerError
from mqlab.bench.load.messages import Record
from mqlab.bench.load.sse import SseReader
from mqlab.bench.summary import Spread, Steady, peak_concurrency, peak_token_rate, spreads, within_limits

SECOND = 10**9
FINISH = {"choices": [{"text": "", "finish_reason": "length"}]}


def line(chunk: dict[str, Any] | str) -> bytes:
    return b"data: " + (chunk if isinstance(chunk, str) else json.dumps(chunk)).encode() + b"\n\n"


def usage(prompt: int, output: int, **details: Any) -> dict[str, Any]:
    return {"choices": [], "usage": {"prompt_tokens": prompt, "completion_tokens": output, **details}}


def texts(*pieces: str, **more: Any) -> list[dict[str, Any]]:
    return [{"choices": [{"text": piece, "finish_reason": None, **more}]} for piece in pieces]


def played(chunks: Sequence[dict[str, Any] | str], gap_s: float = 0.4, due_s: float = 0.0, sent_s: float = 0.0) -> Record:
    """The record of an answer whose events come ``gap_s`` apart, from ``sent_s`` on."""
    record = Record(0, int(due_s * SECOND), woken_ns=int(due_s * SECOND), sent_ns=int(sent_s * SECOND))
    answer = Answer(record, keep_text=True)
    now = record.sent_ns
    for chunk in chunks:
        now += int(gap_s * SECOND) if isinstance(chunk, dict) and chunk["choices"] and chunk is not FINISH else 0
        answer.feed(line(chunk), now)
    answer.close()
    record.end_ns = now
    return record


def timed(record: Record, from_schedule: bool = True, **options: Any) -> Timed:
    return measure(record, 0, from_schedule=from_schedule, **options)


def test_events_of_several_tokens_are_counted_by_usage() -> None:
    one = timed(played([*texts(*["four"] * 10), FINISH, usage(7, 40), "[DONE]"]))
    assert one.tpot == pytest.approx(0.1)
    assert (one.output_tokens, one.input_tokens, one.counted_by) == (40, 7, "usage")
    assert one.ttft == pytest.approx(0.4) and one.e2el == pytest.approx(4.0)
    assert one.inter_chunk.tolist() == pytest.approx([0.4] * 9)
    assert one.itl.tolist() == pytest.approx([0.1] * 9) and not one.itl_exact


def test_one_token_per_event_gives_the_usual_tpot() -> None:
    one = timed(played([*texts(*"abcde"), FINISH, usage(7, 5), "[DONE]"]))
    assert one.tpot == pytest.approx((one.e2el - one.ttft) / (5 - 1)) == pytest.approx(0.4)
    assert one.itl_exact and one.itl.tolist() == one.inter_chunk.tolist()


def test_ids_in_events_tell_how_many_came_first() -> None:
    chunks = [*texts("a", token_ids=[1]), *texts("bc", token_ids=[2, 3]), *texts("def", token_ids=[4, 5, 6])]
    one = timed(played([*chunks, FINISH, "[DONE]"]))
    assert (one.output_tokens, one.counted_by) == (6, "ids")
    assert one.tpot == pytest.approx(0.8 / 5)
    assert one.itl.tolist() == pytest.approx([0.2, 0.4 / 3])


def test_spaces_are_as_many_tokens_as_the_server_says() -> None:
    one = timed(played([*texts(" " * 15), FINISH, usage(3, 7), "[DONE]"]), count_tokens=lambda text: 1)
    assert (one.output_tokens, one.counted_by) == (7, "usage")
    assert math.isnan(one.tpot) and not len(one.inter_chunk), "one event tells nothing about the time between tokens"


def test_without_usage_the_tokenizer_counts_else_it_is_an_estimate() -> None:
    record = played([*texts("ab", "cd"), FINISH, "[DONE]"])
    counted, estimated = timed(record, count_tokens=len, prompt_tokens=11), timed(record, prompt_tokens=11)
    assert (counted.output_tokens, counted.counted_by) == (4, "tokenizer")
    assert (estimated.output_tokens, estimated.counted_by) == (2, "events")
    assert counted.input_tokens == estimated.input_tokens == 11


def test_latencies_start_when_a_request_was_due_unless_told_otherwise() -> None:
    record = played([*texts("a", "b"), FINISH, usage(1, 2), "[DONE]"], due_s=1.0, sent_s=3.0)
    late, sent = timed(record), timed(record, from_schedule=False)
    assert (late.ttft, late.e2el) == pytest.approx((2.4, 2.8))
    assert (sent.ttft, sent.e2el) == pytest.approx((0.4, 0.8))
    assert late.ttft_sent == sent.ttft_sent == pytest.approx(0.4)
    assert late.client_queue == pytest.approx(2.0) and late.start_lag == 0


def test_cached_tokens_and_chat_and_reasoning_are_read() -> None:
    deltas = [{"role": "assistant", "content": ""}, {"reasoning_content": "hm"}, {"content": "yes"}]
    chunks = [{"choices": [{"delta": delta, "finish_reason": None}]} for delta in deltas]
    record = played([*chunks, FINISH, usage(9, 2, prompt_tokens_details={"cached_tokens": 8}), "[DONE]"])
    assert (record.cached_tokens, record.text, len(record.event_ns)) == (8, "hmyes", 2)


def test_an_answer_of_tokens_without_text_has_the_time_of_its_end() -> None:
    one = timed(played([FINISH, usage(1, 3), "[DONE]"]))
    assert one.ok and one.output_tokens == 3 and one.ttft == one.e2el


@pytest.mark.parametrize(
    ("chunks", "message"),
    [
        (texts("a", "b"), "ended after 2 events"),
        ([*texts("a"), {"choices": [], "error": {"message": "the engine died"}}], "error event: the engine died"),
        ([*texts("a"), {"choices": [], "object": "error", "message": "out of memory"}], "error event: out of memory"),
        ([*texts("a"), "{not json"], "no OpenAI chunk"),
        (['{"choices": 7}'], "no OpenAI chunk"),
    ],
)
def test_an_answer_that_is_not_whole_is_an_error(chunks: list[Any], message: str) -> None:
    with pytest.raises(AnswerError, match=message):
        played(chunks)


def test_a_failed_request_has_no_latencies() -> None:
    record = played([*texts("a"), FINISH, usage(1, 1), "[DONE]"])
    record.error = "cut"
    one = timed(record)
    assert not one.ok and one.output_tokens == 0
    assert math.isnan(one.ttft) and math.isnan(one.e2el) and not len(one.event_s)


@given(data=st.data())
def test_events_do_not_depend_on_how_the_network_cuts_them(data: st.DataObject) -> None:
    payloads = data.draw(st.lists(st.text(st.characters(exclude_categories=("Cs", "Zl", "Zp", "Zs", "Cc"))), max_size=6))
    end = data.draw(st.sampled_from(["\n\n", "\r\n\r\n"]))
    stream = "".join(f": comment{end}data: {payload}{end}" for payload in payloads).encode()
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=8)))
    reader = SseReader()
    got = [one for start, stop in zip([0, *cuts], [*cuts, len(stream)], strict=True) for one in reader.feed(stream[start:stop])]
    assert got == [payload.encode() for payload in payloads]


def requests_of(spans: Sequence[tuple[float, float]], tokens: int = 4) -> list[Timed]:
    """Requests that were due and sent at the first number, with their tokens spread evenly up to the second."""
    found = []
    for index, (begin, end) in enumerate(spans):
        stamps = [int(SECOND * (begin + (end - begin) * (k + 1) / tokens)) for k in range(tokens)]
        ns = int(begin * SECOND)
        found.append(timed(Record(index, ns, ns, ns, stamps[-1], stamps, [], 5, tokens)))
    return found


def test_peaks_and_limits() -> None:
    requests = requests_of([(0, 4), (0, 4), (2, 6), (4, 8)])
    assert peak_concurrency(requests) == 3
    assert peak_token_rate(requests) == 3
    assert peak_concurrency([]) == 0 and peak_token_rate([]) == 0
    assert [within_limits(requests[0], {"ttft": limit}) for limit in (1000.0, 999.0)] == [True, False]
    requests[0] = measure(Record(0, 0, error="lost"), 0, from_schedule=True)
    assert not within_limits(requests[0], {"ttft": 9e9}), "a failure keeps no limit"


def test_spreads_leave_out_failures_and_what_is_not_defined() -> None:
    lost = measure(Record(0, 0, end_ns=9 * SECOND, error="lost"), 0, from_schedule=True)
    single = requests_of([(0, 4)], tokens=1)[0]
    found = spreads([*requests_of([(0, 4), (0, 8)]), single, lost], (50, 99.9))
    assert found["tpot"].mean == pytest.approx(1500) and found["tpot"].percentiles["p50"] == pytest.approx(1500)
    assert found["e2el"].as_record("e2el")["median_e2el_ms"] == pytest.approx(4000)
    assert set(found["ttft"].percentiles) == {"p50", "p99.9"}
    assert Spread.of(np.array([math.nan]), (99,)).as_record("ttft") == {
        "mean_ttft_ms": None,
        "median_ttft_ms": None,
        "std_ttft_ms": None,
        "p99_ttft_ms": None,
    }


def test_the_steady_window_leaves_out_ramp_up_and_drain() -> None:
    steady = Steady.of(requests_of([(0, 9), (1, 9), (2, 10), (3, 11)], tokens=800), (99,))
    assert steady is not None
    assert (steady.begin_s, steady.end_s) == (2, 9) or (steady.begin_s, steady.end_s) == (2, 10)
    assert steady.output_throughput == pytest.approx(800 * (1 / 9 + 1 / 8 + 1 / 8 + 1 / 8), rel=0.2)
    assert Steady.of([], (99,)) is None
