"""The runner of rank 0 beside ranks that the test plays: what goes wrong on one is told, and known to all."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from mqlab.errors import ConfigError, RankDied
from mqlab.model.parallel import workers
from mqlab.model.parallel.group import PeerLost
from mqlab.model.parallel.messages import Answer, Close, Done, Line, Order, Refused, Rest, Resume, Run
from mqlab.model.parallel.peers import Peer
from mqlab.model.parallel.runner import ParallelRunner
from mqlab.model.parallel.workers import Workers
from mqlab.plan import Chunk, Plan, SampledTokens
from mqlab.types import ModelInfo, SamplingParams

PLAN = Plan((Chunk("a", (1, 2), 0, (0,), True, SamplingParams(), 0),))
TOKENS = SampledTokens(((7,),))


class OwnRunner:
    """Rank 0's: does as told, and notes what is asked of it."""

    info = ModelInfo(name="m", vocab_size=10, max_model_len=10, max_prompt_len=9, num_blocks=4, block_size=4)

    def __init__(self) -> None:
        self.sampler: Callable[..., Any] = print
        self.asked: list[str] = []
        self.on_wait: Callable[[], object] = lambda: None
        self.on_resume: Callable[[], object] = lambda: None

    def launch(self, plan: Plan) -> OwnRunner:
        self.asked.append("launch")
        return self

    def wait(self) -> SampledTokens:
        self.on_wait()
        return TOKENS

    def check(self) -> None:
        pass

    def rest(self) -> None:
        self.asked.append("rest")

    def resume(self) -> None:
        self.asked.append("resume")
        self.on_resume()

    def close(self) -> None:
        self.asked.append("close")


class NoGroup:
    """Its collectives are none of what is tried here."""

    closed = False

    def close(self) -> None:
        self.closed = True


class Two:
    """Rank 0, and the line of the other rank."""

    def __init__(self) -> None:
        here, there = socket.socketpair()
        self.own, self.group, self.line, self._here = OwnRunner(), NoGroup(), Line(there, Order), Line(here, Answer)
        self.workers = Workers(lambda: [Peer(1, self._here)])
        self.runner = ParallelRunner(self.own, self.workers, self.group)  # type: ignore[arg-type]

    def heard(self, count: int) -> list[Any]:
        return [self.line.receive() for _ in range(count)]

    def close(self) -> None:
        self.runner.close()
        self.line.close()
        self._here.close()


@pytest.fixture
def two(monkeypatch: pytest.MonkeyPatch) -> Iterator[Two]:
    monkeypatch.setattr(workers, "_REMOTE_GRACE_S", 0.05)  # the rank that the test plays is not waited for
    two = Two()
    yield two
    two.close()


def fail(error: Exception) -> Callable[[], object]:
    def raising() -> object:
        raise error

    return raising


def test_a_step_is_run_by_all(two: Two) -> None:
    assert two.runner.launch(PLAN).wait() is TOKENS
    (told,) = two.heard(1)
    assert isinstance(told, Run) and told.plan.chunks[0].tokens == (1, 2)


def test_a_probe_may_replace_the_sampler(two: Two) -> None:
    two.runner.sampler = repr
    assert two.own.sampler is repr and two.runner.sampler is repr


def test_a_lost_rank_is_named_in_the_place_of_the_collective(two: Two) -> None:
    flight = two.runner.launch(PLAN)
    two.line.close()
    two.own.on_wait = fail(PeerLost("reset"))
    with pytest.raises(RankDied, match="rank-1 process is gone") as caught:
        flight.wait()
    assert isinstance(caught.value.__cause__, PeerLost)
    for use in (two.runner.check, two.runner.rest, two.runner.resume, lambda: two.runner.launch(PLAN)):
        with pytest.raises(RankDied):
            use()


def test_tokens_of_a_step_that_lost_a_rank_are_not_given_out(two: Two) -> None:
    """Between GPUs a collective that was cut short raises nothing."""
    flight = two.runner.launch(PLAN)
    two.line.close()
    two.own.on_wait = lambda: two.workers.cause_of(PeerLost("cut short"))
    with pytest.raises(RankDied):
        flight.wait()


def test_what_fails_on_rank_0_alone_is_its_own(two: Two) -> None:
    two.own.on_wait = fail(RuntimeError("weights are broken"))
    with pytest.raises(RuntimeError, match="weights are broken"):
        two.runner.launch(PLAN).wait()
    assert isinstance(two.heard(2)[1], Close) and two.group.closed, "the other one waits for its tokens"
    with pytest.raises(RankDied, match="rank 0 of the model failed: RuntimeError: weights are broken"):
        two.runner.rest()


def test_all_rest_and_wake(two: Two) -> None:
    two.runner.rest()
    two.line.send(Done())
    two.runner.resume()
    assert two.heard(2) == [Rest(), Resume()] and two.own.asked == ["rest", "resume"]


@pytest.mark.parametrize("where", ["here", "there", "both"])
def test_when_one_cannot_wake_all_go_on_resting(where: str, two: Two) -> None:
    if where != "there":
        two.own.on_resume = fail(ConfigError("no room"))
    two.line.send(Done() if where == "here" else Refused("config", "no room"))
    with pytest.raises(ConfigError, match="no room"):
        two.runner.resume()
    assert two.heard(2) == [Resume(), Rest()] and two.own.asked == ["resume", "rest"]
    two.own.on_resume = lambda: None
    two.line.send(Done())
    two.runner.resume()


@pytest.mark.parametrize("error", [ConfigError("no room for graphs"), RuntimeError("no compiler")])
def test_when_rank_0_fails_in_the_midst_of_what_all_do_it_waits_for_nobody(error: Exception, two: Two) -> None:
    """The other rank has not answered, and never will: it waits for this one."""

    def fail_midway() -> None:
        two.group.closed = isinstance(error, ConfigError)
        raise error

    two.own.on_resume = fail_midway
    with pytest.raises(type(error), match=str(error)):
        two.runner.resume()
    assert two.heard(2) == [Resume(), Close()] and two.group.closed
    with pytest.raises(RankDied, match=f"rank 0 of the model failed: {type(error).__name__}: {error}"):
        two.runner.check()


def test_close_tells_all(two: Two) -> None:
    two.runner.close()
    assert two.heard(1) == [Close()] and two.own.asked == ["close"] and two.group.closed
    two.runner.close()
