"""A core whose model comes and goes: whatever happens in which order, every request ends once and everything is given back."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from checksum import VOCAB, Inbox, build_core, build_runner, drain, solo
from hypothesis import given, settings
from hypothesis import strategies as st
from reloading import NO_ROOM, NOWHERE, TOO_BIG, build_reloading, made

from mqlab.engine import echo, lifecycle
from mqlab.engine.core import Core, apply, no_op, step
from mqlab.engine.detokenize import DetokenizingCore
from mqlab.engine.service import Service
from mqlab.errors import InvalidRequest, ModelUnavailable
from mqlab.plan import SampledTokens
from mqlab.text.tokenizer import Tokenizer
from mqlab.types import Abort, Call, EngineStats, Event, Model, ModelInfo, Reply, Request, SamplingParams, Step
from mqlab.wire.statspage import Phase, StatsPage

LONG = SamplingParams(max_tokens=None, ignore_eos=True)
SHORT = SamplingParams(max_tokens=3, ignore_eos=True)
WELL = Request("well", [3, 4], SHORT)


@pytest.fixture(autouse=True)
def no_collector(monkeypatch: pytest.MonkeyPatch) -> None:
    """A collection of all that a test run holds takes a tenth of a second, and these tests free nothing large."""
    monkeypatch.setattr(lifecycle, "reclaim", no_op)


@pytest.fixture(params=["echo", "engine", "echo, async", "engine, async"])
def core(request: pytest.FixtureRequest) -> Core:
    """Either core, running ahead or not."""
    ahead = request.param.endswith("async")
    if request.param.startswith("echo"):
        return echo.build(name="first", vocab_size=VOCAB, max_model_len=128, num_blocks=64, block_size=4, async_scheduling=ahead)
    return build_reloading(async_scheduling=ahead)


def done(core: Core, method: str, *args: Any) -> list[Event]:
    """All that a call brings, with the flights that it takes; nothing else may be in flight."""
    events = core.call(Call(7, method, args, client=3))
    while not any(isinstance(event, Reply) for event in events):
        assert core.loading and core.has_work
        events += core.finish(core.begin().wait())
    return events


def reply(core: Core, method: str, *args: Any) -> Reply:
    """The answer to a call."""
    (found,) = (event for event in done(core, method, *args) if isinstance(event, Reply))
    assert (found.id, found.client) == (7, 3)
    return found


def stats_of(core: Core) -> EngineStats:
    return core.calls["stats"]()


def serves(core: Core) -> None:
    core.add(WELL)
    assert len(drain(core).answers[0, "well"].tokens) == 3
    assert stats_of(core).blocks_used == 0


def busy(core: Core) -> None:
    """Twelve requests of two clients: some run, some wait, and one that runs ahead has a step in flight."""
    for i in range(12):
        core.add(Request(f"r{i}", [3, 4, 5], LONG, client=i % 2))
    step(core)


def test_a_change_is_told_after_the_requests_that_it_ends_and_before_the_answer(core: Core) -> None:
    busy(core)
    events = done(core, "unload")
    *steps, model, answer = events
    assert [type(event) for event in steps] == [Step, Step] and isinstance(model, Model) and isinstance(answer, Reply)
    deltas = [(event.client, delta) for event in steps if isinstance(event, Step) for delta in event.deltas]
    assert {(client, delta.id) for client, delta in deltas} == {(i % 2, f"r{i}") for i in range(12)}
    assert all(delta.error is not None and (delta.finish, delta.error.kind) == ("error", "unavailable") for _, delta in deltas)
    assert model.info == core.info and (core.info.state, core.info.epoch) == ("unloaded", 1)
    assert not core.has_work and stats_of(core).finished["error"] == 12
    assert set(answer.value) == {"rss_before", "rss_after"}


def test_an_unloaded_core_refuses_and_answers(core: Core) -> None:
    serves(core)
    reply(core, "unload")
    with pytest.raises(ModelUnavailable, match="'first' was unloaded"):
        core.add(WELL)
    (refusal,) = apply(core, WELL)
    assert isinstance(refusal, Step) and refusal.deltas[0].error is not None and refusal.deltas[0].error.kind == "unavailable"
    for method, value in (("ping", True), ("is_sleeping", False), ("reset_prefix_cache", True)):
        assert reply(core, method).value == value
    stats = stats_of(core)
    assert (stats.generation_tokens, stats.running, stats.waiting, stats.blocks_used, stats.blocks_total) == (3, 0, 0, 0, 0)
    assert not any(isinstance(event, Model) for event in done(core, "unload")), "nothing changed"
    assert reply(core, "load", "second").value == core.info
    assert (core.info.name, core.info.epoch, core.info.state) == ("second", 2, "ready")
    serves(core)


def test_options_are_of_one_load(core: Core) -> None:
    blocks = "num_blocks" if isinstance(core, echo.EchoCore) else "num_kv_blocks"
    assert reply(core, "load", "small", {blocks: 5, "max_model_len": 16, "max_num_seqs": 1}).value.num_blocks == 5
    for i in range(2):
        core.add(Request(f"r{i}", [3], SHORT))
    step(core)
    assert (stats_of(core).running, stats_of(core).waiting, stats_of(core).blocks_total) == (1, 1, 5)
    with pytest.raises(InvalidRequest, match="at most 15 fit"):
        core.add(Request("long", [3] * 16, LONG))
    assert reply(core, "load", "large").value.num_blocks == 64
    serves(core)


@pytest.mark.parametrize("options", [{"colour": "red"}, {"model": "other"}, {"name": "other"}])
def test_what_no_load_takes_is_refused_and_changes_nothing(core: Core, options: dict[str, Any]) -> None:
    busy(core)
    assert f"load does not take {next(iter(options))}; it takes " in (reply(core, "load", "second", options).error or "")
    assert stats_of(core).running and core.info.epoch == 1


def test_sleep_and_wake_up(core: Core) -> None:
    info = core.info
    for level in (1, 2):
        busy(core)
        assert reply(core, "sleep", level).error is None
        assert (core.info.state, core.info.epoch, stats_of(core).blocks_total) == ("asleep", 1, 0)
        assert reply(core, "is_sleeping").value is True
        with pytest.raises(ModelUnavailable, match="sleeps"):
            core.add(WELL)
        events = done(core, "wake_up")
        assert [type(event) for event in events] == [Model, Reply] and core.info == info
        serves(core)
    assert [type(event) for event in done(core, "wake_up")] == [Reply], "it was awake"
    assert "level=0 must be 1" in (reply(core, "sleep", 0).error or "") and core.info == info


def test_a_request_for_another_epoch_is_refused(core: Core) -> None:
    core.add(Request("now", [3], SHORT, epoch=1))
    reply(core, "load", "second")
    with pytest.raises(ModelUnavailable, match=r"made for epoch 1 .* is epoch 2"):
        core.add(Request("old", [3], SHORT, epoch=1))
    core.add(Request("new", [3], SHORT, epoch=2))
    assert drain(core).answers[0, "new"].finish == "length"


def test_calls_in_flight_are_done_in_their_order(core: Core) -> None:
    core.add(Request("a", [3, 4, 5], LONG))
    flight = core.begin()
    for number, (method, *args) in enumerate([("unload",), ("stats",), ("load", "second"), ("is_sleeping",), ("sleep",), ("ping",)]):
        assert core.call(Call(number, method, tuple(args))) == []
    events = core.finish(flight.wait())
    assert [event.id for event in events if isinstance(event, Reply)] == [0, 1], "a load takes flights"
    assert core.loading
    while core.has_work:
        assert core.call(Call(9, "ping")) == []
        events += core.finish(core.begin().wait())
    assert [event.id for event in events if isinstance(event, Reply)][:6] == [0, 1, 2, 3, 4, 5]
    assert [event.info.state for event in events if isinstance(event, Model)] == ["unloaded", "ready", "asleep"]
    assert not core.loading


def test_requests_and_aborts_while_a_model_is_looked_for(core: Core) -> None:
    """The model that is loaded still has its requests then."""
    busy(core)
    assert core.call(Call(1, "load", ("second",))) == []
    flight = core.begin()
    core.add(Request("late", [3], LONG))
    assert apply(core, Abort(("r0", "late"))) == []
    inbox = Inbox()
    inbox.take(core.finish(flight.wait()))
    assert {inbox.answers[0, id].finish for id in ("r0", "late")} == {"abort"}
    assert {answer.finish for answer in inbox.answers.values()} == {"abort", "error"} and len(inbox.answers) == 13
    with pytest.raises(ModelUnavailable):
        core.add(WELL)
    drain(core, inbox)
    serves(core)


def test_a_service_says_that_it_loads() -> None:
    """A load is judged by no limit of a step."""
    page = StatsPage()
    service = Service(echo.build(), page, 0.0)
    assert service.apply(Call(1, "load", ("second",))) == []
    phases = []
    while service.has_work:
        service.step(lambda: phases.append(page.stamp().phase))
    assert phases == [Phase.LOADING] * 2 and page.stamp().phase is Phase.IDLE
    service.apply(Call(1, "unload"))
    assert page.read().blocks_total == 0


def test_the_text_of_another_model_is_made_by_its_own_tokenizer(model_folder: Path) -> None:
    core = DetokenizingCore(echo.build(path=str(model_folder)))
    core.add(Request("a", [10, 11], LONG))
    (ended, *_) = done(core, "load", "without", {"path": ""})
    assert isinstance(ended, Step) and ended.deltas[0].text == ""
    assert core.info.name == "without"
    core.add(Request("a", [10], SHORT))
    assert [delta.text for event in step(core) if isinstance(event, Step) for delta in event.deltas] == [None]
    drain(core)
    done(core, "load", "with", {"path": str(model_folder)})
    prompt = Tokenizer.load(model_folder).encode("Hello")
    core.add(Request("a", prompt, SamplingParams(max_tokens=len(prompt), ignore_eos=True)))
    texts = [delta.text for event in step(core) if isinstance(event, Step) for delta in event.deltas]
    assert texts == ["Hello"]


# --- with a runner to watch


def runners() -> list[str]:
    return [runner.state for runner in made]


@pytest.mark.parametrize("ahead", [False, True])
def test_what_is_in_flight_is_waited_for_and_dropped(ahead: bool) -> None:
    core = build_reloading(async_scheduling=ahead)
    busy(core)
    assert len(made[0].flights) == ahead
    reply(core, "sleep")
    assert not made[0].flights and runners() == ["resting"]
    assert [kind for kind, _ in made[0].log].count("wait") == 1 + ahead


def test_runners_rest_and_go() -> None:
    core = build_reloading(num_kv_blocks=20)
    reply(core, "sleep")
    reply(core, "sleep", 1)
    assert runners() == ["resting"]
    reply(core, "wake_up")
    assert runners() == ["open"]
    reply(core, "sleep", 2)
    reply(core, "sleep", 1)
    assert runners() == ["closed"] and core.runner is None
    reply(core, "wake_up")
    assert runners() == ["closed", "open"] and core.info.num_blocks == 20
    reply(core, "sleep")
    reply(core, "sleep", 2)
    reply(core, "load", "second", {"served_model_name": "mine"})
    assert runners() == ["closed", "closed", "open"] and core.info.name == "mine"
    reply(core, "load", "third")
    assert runners() == ["closed", "closed", "closed", "open"] and core.info.name == "third"
    core.close()
    core.close()
    assert made[-1].closed == 1


def test_a_model_that_is_not_there_leaves_the_other_in_service() -> None:
    core = build_reloading()
    busy(core)
    for model, options, why in (
        (NOWHERE, {}, "no model 'nowhere'"),
        ("second", {"block_size": 0}, "--block-size=0 must be at least 1"),
        ("second", {"max_num_seqs": "many"}, "--max-num-seqs='many' is not valid"),
        ("second", {"dtype": "int8"}, "--dtype='int8' is unknown; it is one of auto, float32, bfloat16, float16"),
        ("echo", {}, "load cannot put 'echo', an engine without a model, in the place of one"),
    ):
        events = done(core, "load", model, options)
        assert isinstance(events[-1], Reply) and why in (events[-1].error or "") and not any(isinstance(one, Model) for one in events)
    assert runners() == ["open"] and stats_of(core).running
    assert {answer.finish for answer in drain(core).answers.values()} == {"length"}


def test_a_model_that_cannot_be_opened_leaves_none() -> None:
    core = build_reloading()
    busy(core)
    events = done(core, "load", TOO_BIG)
    assert isinstance(events[-1], Reply) and events[-1].error == "load: MemoryError: as told"
    assert (core.info.state, core.info.epoch, core.info.name) == ("unloaded", 1, "first")
    assert runners() == ["closed"] and not core.has_work
    reply(core, "load", "second")
    assert core.info.epoch == 2
    serves(core)


def test_a_model_that_cannot_wake_up_sleeps_on() -> None:
    core = build_reloading(model=NO_ROOM)
    reply(core, "sleep")
    assert reply(core, "wake_up").error == "no room for the KV memory"
    assert (core.info.state, runners()) == ("asleep", ["resting"])
    assert reply(core, "unload").error is None
    reply(core, "load", "second")
    serves(core)


def test_a_core_around_one_runner_only_sleeps() -> None:
    core = build_core(build_runner())
    assert "no way to make another" in (reply(core, "load", "second").error or "")
    serves(core)
    reply(core, "sleep")
    reply(core, "wake_up")
    serves(core)


def test_counters_go_on_when_queues_are_made_anew() -> None:
    core = build_reloading(num_kv_blocks=6, max_model_len=24)
    for i in range(3):
        core.add(Request(f"r{i}", [3, 4, 5], LONG))
    drain(core)
    before = stats_of(core)
    assert before.preemptions and before.prefix_queries
    reply(core, "load", "second")
    serves(core)
    after = stats_of(core)
    assert (after.preemptions, after.prefix_queries) == (before.preemptions, before.prefix_queries + 2)
    assert (after.steps, after.prompt_tokens) == (before.steps + 3, before.prompt_tokens + 2)


def test_a_close_while_a_model_is_opened_ends_it_too() -> None:
    core = build_reloading()
    core.call(Call(1, "load", ("second",)))
    core.finish(core.begin().wait())
    core.begin().wait()
    assert runners() == ["closed", "open"]
    core.close()
    assert runners() == ["closed", "closed"]


@st.composite
def histories(draw: st.DrawFn) -> list[tuple[bool, Any]]:
    """Commands, and whether each comes while a step or a part of a call is in flight."""
    calls = [("load", "a"), ("load", TOO_BIG), ("load", NOWHERE), ("unload",), ("sleep", 1), ("sleep", 2), ("wake_up",), ("stats",)]
    one = st.one_of(
        st.sampled_from(calls),
        st.integers(1, 12).map(lambda length: ("add", length)),
        st.integers(0, 30).map(lambda number: ("abort", number)),
        st.just(("step",)),
    )
    return draw(st.lists(st.tuples(st.booleans(), one), max_size=40))


class History:
    """Carries commands out, and holds a core to what must be true at every moment."""

    def __init__(self, core: Any) -> None:
        self.core = core
        self.inbox = Inbox()
        self.told: ModelInfo = core.info
        self.requests: dict[str, Request] = {}
        self.calls = 0

    def take(self, events: list[Event]) -> None:
        for event in events:
            if isinstance(event, Model):
                assert event.info != self.told and event.info.epoch - self.told.epoch in (0, 1)
                self.told = event.info
        assert self.told == self.core.info, "every change is told"
        self.inbox.take(events)
        open_ones = [runner for runner in made if runner.state == "open"]
        assert len(open_ones) <= 1 and len([runner for runner in made if runner.state == "resting"]) <= 1

    def apply(self, kind: str, *args: Any) -> None:
        match kind:
            case "add":
                request = Request(
                    f"r{len(self.requests)}", [3 + i % 20 for i in range(args[0])], SamplingParams(max_tokens=6, seed=args[0])
                )
                self.requests[request.id] = request
                self.take(apply(self.core, request))
            case "abort":
                self.take(apply(self.core, Abort((f"r{args[0]}",))))
            case "step":
                pass
            case _:
                self.calls += 1
                self.take(apply(self.core, Call(self.calls, kind, args)))

    def step(self, meanwhile: Callable[[], None] = lambda: None) -> None:
        if self.core.has_work:
            flight = self.core.begin()
            meanwhile()
            self.take(self.core.finish(flight.wait()))
        else:
            meanwhile()


@settings(max_examples=60, deadline=None)
@given(histories(), st.booleans(), st.sampled_from([1, 4]))
def test_every_history_ends_well(history: list[tuple[bool, Any]], ahead: bool, rounds: int) -> None:
    core = build_reloading(num_kv_blocks=9, max_model_len=30, async_scheduling=ahead, num_scheduler_steps=rounds)
    run = History(core)
    for in_flight, command in history:
        if in_flight or command[0] == "step":
            run.step(lambda command=command: run.apply(*command))
        else:
            run.apply(*command)
    while core.has_work:
        run.step()
    assert len(run.inbox.replies) == run.calls and {reply.id for reply in run.inbox.replies} == set(range(1, run.calls + 1))
    assert run.inbox.answers.keys() == {(0, id) for id in run.requests}, "each request ends"
    for (_, id), answer in run.inbox.answers.items():
        wanted = solo(run.requests[id], 30)
        if answer.finish in ("stop", "length"):
            assert answer == wanted
        else:
            assert answer.tokens == wanted.tokens[: len(answer.tokens)]
    stats = stats_of(core)
    assert (stats.running, stats.waiting, stats.blocks_used) == (0, 0, 0)
    assert stats.blocks_total == (9 if core.info.state == "ready" else 0)
    assert (core.runner is not None and made[-1].state == "open") == (core.info.state == "ready")
    core.close()
    assert {runner.state for runner in made} == {"closed"}


def test_a_step_that_was_dropped_may_have_failed() -> None:
    """It is nobody's any more; the model goes all the same."""
    core = build_reloading(async_scheduling=True)
    busy(core)
    flight = made[0].flights[-1]

    def fail(which: Any) -> SampledTokens:
        made[0].flights.clear()
        raise RuntimeError(f"{which is flight}")

    made[0].land = fail  # type: ignore[method-assign]
    assert reply(core, "unload").error is None
    assert core.info.state == "unloaded" and runners() == ["closed"]
