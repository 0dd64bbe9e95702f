"""What any core does around its steps: refusals, aborts, calls, clients. Run over both cores."""

from __future__ import annotations

import pstats
from pathlib import Path
from typing import Any

import pytest
from checksum import VOCAB, Inbox, drain

from mqlab.engine.core import Core, apply, step
from mqlab.errors import InvalidRequest
from mqlab.types import Abort, Call, EngineStats, Reply, Request, SamplingParams, Step

LONG = SamplingParams(max_tokens=None, ignore_eos=True)


def ask(id: str, client: int = 0, params: SamplingParams = LONG) -> Request:
    return Request(id, [3, 4, 5], params, client=client)


def stats_of(core: Core) -> EngineStats:
    return core.calls["stats"]()


def reply_to(core: Core, method: str, *args: object) -> Reply:
    (reply,) = core.call(Call(7, method, args, client=3))
    assert reply is not None
    assert (reply.id, reply.client) == (7, 3)
    return reply


def test_an_idle_core_has_no_work(any_core: Core) -> None:
    assert not any_core.has_work
    any_core.add(ask("a"))
    assert any_core.has_work
    drain(any_core)
    stats = stats_of(any_core)
    assert (stats.running, stats.waiting, stats.blocks_used, stats.blocks_total) == (0, 0, 0, 64)
    assert stats.finished["length"] == 1


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        ([], "prompt has 0 tokens; it needs at least 1"),
        ([1, VOCAB], f"token id {VOCAB}; the vocabulary of .* has ids 0 to {VOCAB - 1}"),
        ([-1], "token id -1"),
        ([1.5], "must hold token ids"),
        ([3] * 128, "prompt has 128 tokens; at most 127 fit"),
    ],
)
def test_a_bad_prompt_is_refused_and_harms_nobody(any_core: Core, prompt: list[int], message: str) -> None:
    any_core.add(ask("good"))
    with pytest.raises(InvalidRequest, match=message):
        any_core.add(Request("bad", prompt, LONG))
    inbox = drain(any_core)
    assert inbox.answers[0, "good"].finish == "length"
    assert set(inbox.answers) == {(0, "good")}


def test_stop_ids_outside_the_vocabulary_are_refused(any_core: Core) -> None:
    with pytest.raises(InvalidRequest, match=f"stop_token_ids holds token id {VOCAB}"):
        any_core.add(ask("r", params=SamplingParams(stop_token_ids=(VOCAB,))))


@pytest.mark.parametrize("wrong", [{"seed": 1.5}, {"top_k": 1.5}, {"max_tokens": 2.5}, {"stop_token_ids": (1.5,)}])
def test_parameters_of_a_wrong_type_are_refused(any_core: Core, wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest, match=rf"Expected .*int.*{next(iter(wrong))}"):
        any_core.add(ask("r", params=SamplingParams(**wrong)))
    assert not any_core.has_work


def test_a_live_id_is_refused_and_free_again_afterwards(any_core: Core) -> None:
    any_core.add(ask("a"))
    with pytest.raises(InvalidRequest, match="'a' is live"):
        any_core.add(ask("a"))
    drain(any_core)
    any_core.add(ask("a"))
    assert drain(any_core).answers[0, "a"].finish == "length"


def test_a_refusal_is_an_error_delta_for_its_client(any_core: Core) -> None:
    (event,) = apply(any_core, Request("bad", [], LONG, client=5))
    assert isinstance(event, Step)
    assert (event.client, event.deltas[0].finish) == (5, "error")
    assert event.deltas[0].error is not None
    assert event.deltas[0].error.kind == "invalid"


def test_each_client_gets_a_step_of_its_own(any_core: Core) -> None:
    for client in (0, 1, 2):
        any_core.add(ask("same", client))
    events = step(any_core)
    assert [event.client for event in events if isinstance(event, Step)] == [0, 1, 2]
    inbox = Inbox()
    inbox.take(events)
    assert {answer.finish for answer in drain(any_core, inbox).answers.values()} == {"length"}


def test_an_abort_ends_the_clients_own_request_only(any_core: Core) -> None:
    any_core.add(ask("same", 0))
    any_core.add(ask("same", 1))
    (event,) = apply(any_core, Abort(("same", "unknown", "same"), client=1))
    assert isinstance(event, Step)
    assert event.client == 1
    assert [(delta.id, delta.tokens, delta.finish) for delta in event.deltas] == [("same", [], "abort")]
    assert drain(any_core).answers.keys() == {(0, "same")}


def test_an_abort_without_ids_ends_all_of_a_client_that_is_gone(any_core: Core) -> None:
    for i in range(12):  # some run, some wait
        any_core.add(ask(f"r{i}", client=1))
    any_core.add(ask("r0", client=2))
    step(any_core)
    (event,) = apply(any_core, Abort(None, client=1))
    assert isinstance(event, Step)
    assert (event.client, {delta.id for delta in event.deltas}) == (1, {f"r{i}" for i in range(12)})
    assert {(delta.tokens, delta.finish) == ([], "abort") for delta in event.deltas} == {True}
    assert apply(any_core, Abort(None, client=1)) == []
    assert drain(any_core).answers.keys() == {(2, "r0")}
    assert (stats_of(any_core).blocks_used, stats_of(any_core).finished["abort"]) == (0, 12)


def test_an_abort_without_ids_in_flight_marks_all(any_core: Core) -> None:
    any_core.add(ask("gone", 1))
    any_core.add(ask("stays", 0))
    flight = any_core.begin()
    assert any_core.abort(None, 1) == []
    any_core.add(ask("comes", 1))  # of whoever has that number next
    events = any_core.finish(flight.wait())
    aborted = [delta.id for event in events if isinstance(event, Step) and event.client == 1 for delta in event.deltas]
    assert aborted == ["gone"]
    assert drain(any_core).answers.keys() == {(0, "stays"), (1, "comes")}


def test_unknown_and_finished_ids_are_ignored_by_abort(any_core: Core) -> None:
    any_core.add(ask("a"))
    drain(any_core)
    assert apply(any_core, Abort(("a", "never"))) == []
    assert stats_of(any_core).finished["abort"] == 0


def test_an_abort_of_a_waiting_request_takes_it_out_of_the_queue(any_core: Core) -> None:
    for i in range(12):
        any_core.add(ask(f"r{i}"))
    step(any_core)
    assert stats_of(any_core).waiting > 0
    assert [delta.id for delta in any_core.abort(("r11", "r10"))] == ["r11", "r10"]
    assert drain(any_core).answers.keys() == {(0, f"r{i}") for i in range(10)}


def test_an_abort_in_flight_only_marks(any_core: Core) -> None:
    any_core.add(ask("gone"))
    any_core.add(ask("stays"))
    flight = any_core.begin()
    assert any_core.abort(("gone",)) == []
    assert any_core.abort(("gone",)) == []
    inbox = Inbox()
    inbox.take(any_core.finish(flight.wait()))
    assert (inbox.answers[0, "gone"].tokens, inbox.answers[0, "gone"].finish) == ((), "abort")
    assert len(inbox.answers[0, "stays"].tokens) == 1
    assert (stats_of(any_core).generation_tokens, stats_of(any_core).running) == (1, 1)


def test_a_request_added_and_aborted_in_flight_ends_with_the_flight(any_core: Core) -> None:
    any_core.add(ask("a"))
    flight = any_core.begin()
    any_core.add(ask("b"))
    with pytest.raises(InvalidRequest):
        any_core.add(ask("b"))
    any_core.abort(("b",))
    inbox = Inbox()
    inbox.take(any_core.finish(flight.wait()))
    assert inbox.answers[0, "b"].finish == "abort"
    assert stats_of(any_core).waiting == 0


def test_all_aborted_leaves_nothing(any_core: Core) -> None:
    for i in range(12):
        any_core.add(ask(f"r{i}"))
    flight = any_core.begin()
    any_core.abort(tuple(f"r{i}" for i in range(12)))
    inbox = Inbox()
    inbox.take(any_core.finish(flight.wait()))
    assert {answer.finish for answer in inbox.answers.values()} == {"abort"}
    # One that runs ahead has a step in flight, of which nobody hears.
    drain(any_core, inbox)
    stats = stats_of(any_core)
    assert (stats.running, stats.waiting, stats.blocks_used, stats.finished["abort"]) == (0, 0, 0, 12)


def test_a_call_in_flight_is_answered_by_finish(any_core: Core) -> None:
    any_core.add(ask("a"))
    flight = any_core.begin()
    assert any_core.call(Call(1, "stats", client=4)) == []
    assert any_core.call(Call(2, "nope")) == []
    inbox = Inbox()
    inbox.take(any_core.finish(flight.wait()))
    first, second = inbox.replies
    assert (first.id, first.client, first.value.generation_tokens) == (1, 4, 1)
    assert second.error is not None
    assert reply_to(any_core, "ping").value is True


def test_an_unknown_call_names_the_known_ones(any_core: Core) -> None:
    error = reply_to(any_core, "nope").error
    assert error == f"unknown call 'nope'; known: {', '.join(sorted(any_core.calls))}"
    assert {"ping", "stats", "start_profile", "stop_profile", "reset_prefix_cache"} <= any_core.calls.keys()


def test_wrong_arguments_fail_the_call_only(any_core: Core) -> None:
    error = reply_to(any_core, "ping", 1, 2).error
    assert error is not None
    assert error.startswith("ping: TypeError")
    assert reply_to(any_core, "ping").value is True


def test_a_profile_is_written(any_core: Core, tmp_path: Path) -> None:
    path = str(tmp_path / "core.pstats")
    assert reply_to(any_core, "start_profile", path).value == path
    any_core.add(ask("a"))
    drain(any_core)
    assert reply_to(any_core, "stop_profile").value == path
    assert "begin" in pstats.Stats(path).get_stats_profile().func_profiles


def test_a_profile_starts_and_stops_once(any_core: Core, tmp_path: Path) -> None:
    assert "start_profile first" in (reply_to(any_core, "stop_profile").error or "")
    reply_to(any_core, "start_profile", str(tmp_path / "one"))
    assert "stop_profile first" in (reply_to(any_core, "start_profile", str(tmp_path / "two")).error or "")
    assert reply_to(any_core, "stop_profile").value == str(tmp_path / "one")
    assert reply_to(any_core, "stop_profile").error


def test_a_profile_that_cannot_be_written_is_refused_at_once(any_core: Core, tmp_path: Path) -> None:
    assert "cannot write" in (reply_to(any_core, "start_profile", str(tmp_path / "no" / "where")).error or "")
    assert "start_profile first" in (reply_to(any_core, "stop_profile").error or "")


def test_close_ends_a_profile_and_is_idempotent(any_core: Core, tmp_path: Path) -> None:
    reply_to(any_core, "start_profile", str(tmp_path / "one"))
    any_core.close()
    any_core.close()
    assert reply_to(any_core, "stop_profile").error
