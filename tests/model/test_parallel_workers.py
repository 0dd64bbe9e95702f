"""Rank 0's hold on the other ranks, over sockets whose other ends the test holds."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import psutil
import pytest
from failing_rank import SAID

from mqlab.config import EngineConfig
from mqlab.contract.rig import SEEN_S, Stopwatch
from mqlab.contract.waiting import until_sync
from mqlab.errors import ConfigError, ModelError, RankDied
from mqlab.model.parallel import ranks, workers
from mqlab.model.parallel.messages import Answer, Build, Close, Closed, Done, Failed, Hello, Line, Order, Refused, Rest, Resume, Run, bare
from mqlab.model.parallel.peers import Peer
from mqlab.model.parallel.workers import Workers
from mqlab.plan import Chunk, Plan, Scored
from mqlab.types import SamplingParams


@dataclass
class Others:
    """Two ranks on other hosts, played by the test.

    Attributes:
        lines: their ends.
    """

    workers: Workers
    lines: list[Line]
    threads: list[threading.Thread] = field(default_factory=list)


@pytest.fixture(autouse=True)
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """The ranks that the test plays are not waited for."""
    monkeypatch.setattr(workers, "_REMOTE_GRACE_S", 0.05)


@pytest.fixture
def others() -> Iterator[Others]:
    pairs = [socket.socketpair() for _ in range(2)]
    peers = [Peer(rank, Line(here, Answer)) for rank, (here, _) in enumerate(pairs, 1)]
    held = Others(Workers(lambda: peers), [Line(there, Order) for _, there in pairs])
    yield held
    held.workers.close()
    for line in (*held.lines, *(peer.line for peer in peers)):
        line.close()


def test_what_is_told_reaches_all(others: Others) -> None:
    for order in (Build(EngineConfig(model="m", tensor_parallel_size=3)), Rest(), Resume(), Close()):
        others.workers.tell(order)
        assert [line.receive() for line in others.lines] == [order, order]


def test_all_must_have_done_it(others: Others) -> None:
    for line in others.lines:
        line.send(Done())
    others.workers.ask(Resume())
    others.lines[0].send(Done())
    others.lines[1].send(Refused("config", "no room"))
    with pytest.raises(ConfigError, match="no room"):
        others.workers.ask(Resume())
    for line in others.lines:
        line.send(Refused("model", "no such model"))
    with pytest.raises(ModelError, match="no such model"):
        others.workers.ask(Build(EngineConfig()))
    others.workers.check()


def test_the_end_of_a_line_is_the_end_of_its_rank(others: Others) -> None:
    others.lines[1].send(Hello(2, 4711, "elsewhere"))
    others.lines[1].close()
    with pytest.raises(RankDied, match="rank-2 process 4711 on elsewhere is gone"):
        others.workers.ask(Resume())
    with pytest.raises(RankDied, match="elsewhere"):
        others.workers.check()
    with pytest.raises(RankDied, match="elsewhere"):
        others.workers.tell(Rest())


def test_the_first_to_fail_is_the_cause_and_not_who_lost_it(others: Others) -> None:
    others.lines[0].send(Failed("PeerLost: connection reset", "", lost=True))
    others.lines[1].send(Failed("ValueError: as told", "Traceback: here"))
    told = others.workers.cause_of(RuntimeError("connection reset"))
    assert str(told) == "rank-2 process failed: ValueError: as told" and "Traceback: here" in told.__notes__[0]
    with pytest.raises(RankDied, match="as told"):
        others.workers.check()


def test_a_lost_peer_alone_is_told_as_well(others: Others, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "SETTLE_S", 0.1)
    others.lines[0].send(Failed("PeerLost: connection reset", "", lost=True))
    assert "PeerLost" in str(others.workers.cause_of(RuntimeError("reset")))


def test_what_a_rank_refuses_once_all_have_begun_is_raised_as_it_is(others: Others) -> None:
    others.lines[0].send(Failed("PeerLost: connection reset", "", lost=True))
    others.lines[1].send(Failed("ModelError: no tensor", "Traceback: here", refused=Refused("model", "no tensor")))
    told = others.workers.cause_of(RuntimeError("connection reset"))
    assert type(told) is ModelError and str(told) == "no tensor" and not hasattr(told, "__notes__")
    with pytest.raises(ModelError, match="no tensor"):
        others.workers.hear()


def test_who_is_gone_already_is_told_to_whoever_asks_late(others: Others) -> None:
    others.lines[0].close()
    with pytest.raises(RankDied):
        others.workers.hear()
    called = threading.Event()
    others.workers.on_death(called.set)
    assert called.is_set()


def test_rank_0_itself_may_be_what_failed(others: Others) -> None:
    others.workers.give_up("rank 0 of the model failed: no room")
    for line in others.lines:
        assert line.receive() == Close()
    with pytest.raises(RankDied, match="no room"):
        others.workers.check()


def test_what_is_not_understood_is_the_end_of_its_rank(others: Others) -> None:
    with pytest.raises(RankDied, match="rank-1 process failed: it said what is not understood"):
        others.lines[0].send(Rest())
        others.workers.hear()


@pytest.mark.parametrize("said", [[], [Done(), Refused("config", "no room")]])
def test_a_rank_that_frees_its_model_is_heard_to_the_end(said: list[Answer], monkeypatch: pytest.MonkeyPatch) -> None:
    """Torchrun's serve one model after the other, and what one has said of the last would be taken for what it says of the next."""
    monkeypatch.setattr(workers, "_REMOTE_GRACE_S", 60.0)
    here, there = (Line(end, kind) for end, kind in zip(socket.socketpair(), (Answer, Order), strict=True))
    for _ in range(2):
        held = Workers(lambda: [Peer(1, here)])
        there.send(Done())
        held.ask(Resume())
        closing = threading.Thread(target=held.close)
        closing.start()
        assert (there.receive(), there.receive()) == (Resume(), Close())
        for answer in (*said, Closed()):
            there.send(answer)
        closing.join()
        assert not here.closed
    for line in (here, there):
        line.close()


def test_a_rank_that_does_not_free_its_model_loses_its_line() -> None:
    here, there = (Line(end, kind) for end, kind in zip(socket.socketpair(), (Answer, Order), strict=True))
    Workers(lambda: [Peer(1, here)]).close()
    assert here.closed and (there.receive(), there.receive()) == (Close(), None)
    there.close()


def test_somebody_who_is_called_when_one_is_gone(others: Others) -> None:
    called = threading.Event()
    others.workers.on_death(called.set)
    others.lines[0].close()
    assert called.wait(SEEN_S)


def test_a_plan_goes_without_what_only_rank_0_needs(others: Others) -> None:
    params = SamplingParams(temperature=0.3, logit_bias={3: 1.0}, presence_penalty=1.0, prompt_logprobs=4)
    everything = {"banned": (1, 2), "history": (5, 6), "num_prompt": 1, "mask": np.ones(3, np.uint32), "pooling": "mean"}
    chunk = Chunk("secret", (5, 6, 7), 3, (4, 9), True, params, 17, 2, rounds=3, drafts=1, scored=Scored(1, (7,)), **everything)
    plain = Chunk("follows", (-1,), 5, (2,), True, params, 17, follows=0)
    others.workers.tell(Run(bare(Plan((chunk, plain)))))
    got, other = others.lines[0].receive().plan.chunks
    assert (got.tokens, got.start, got.blocks, got.samples, got.output_index) == ((5, 6, 7), 3, (4, 9), True, 2)
    assert (got.rounds, got.drafts, got.scored, other.follows) == (3, 1, Scored(1, (7,)), 0)
    assert (got.mask, list(got.history), got.banned, got.pooling, got.id) == (None, [], (), "mean", "")
    assert got.params == SamplingParams(prompt_logprobs=0) and other.params == SamplingParams()


def test_dropped_workers_end() -> None:
    here, there = socket.socketpair()
    ended = threading.Event()
    workers = Workers(lambda: [Peer(1, Line(here, Answer))], ended.set)
    del workers
    assert ended.wait(SEEN_S)
    line = Line(there, Order)
    assert line.receive() == Close()
    line.close()
    here.close()


def test_a_rank_that_fails_before_it_says_a_word_is_told_with_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranks, "ENTRY", "failing_rank:run_rank")
    found = ranks.local_ranks(3)
    watch = Stopwatch()
    with pytest.raises(RankDied, match=f"rank-[12] process [0-9]+ failed: ValueError: {SAID}") as caught:
        found.workers.ask(Build(EngineConfig()))
    assert "in run_rank" in caught.value.__notes__[0]
    found.workers.close()
    assert watch.seconds < SEEN_S


def test_ranks_that_do_not_listen_are_killed_in_bounded_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranks, "ENTRY", "failing_rank:deaf_rank")
    found = ranks.local_ranks(3)
    found.workers.ask(Rest())
    watch = Stopwatch()
    found.workers.close()
    assert watch.seconds < SEEN_S / 2
    until_sync(lambda: not any(thread.name == "mqlab-ranks" for thread in threading.enumerate()))


def test_workers_that_are_dropped_in_their_own_thread_leave_no_file_open() -> None:
    """A collector of garbage runs in whichever thread allocates."""
    here, there = socket.socketpair()
    before, ended = psutil.Process().num_fds(), threading.Event()
    workers = Workers(lambda: [Peer(1, Line(here, Answer))], ended.set)
    held = workers._held
    workers.on_death(lambda: held.stop(True))
    there.close()
    assert ended.wait(10)
    workers.close()
    assert psutil.Process().num_fds() == before - 2, "both ends of the line are gone as well"
