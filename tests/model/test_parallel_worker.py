"""A rank that is not the first, told what to do over a socket whose other end the test holds."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch._C._distributed_c10d import HashStore

from mqlab.config import EngineConfig
from mqlab.contract.rig import SEEN_S
from mqlab.errors import ConfigError, ModelError
from mqlab.model.accel.choice import Choice
from mqlab.model.parallel import place, worker
from mqlab.model.parallel.group import PeerLost, TorchGroup
from mqlab.model.parallel.messages import Answer, Build, Close, Closed, Connect, Done, Failed, Line, Order, Refused, Rest, Resume
from mqlab.model.parallel.place import Place
from mqlab.model.parallel.worker import Worker

CONFIG = EngineConfig(model="m", tensor_parallel_size=2)
SAID = "no room"


class OwnRunner:
    """Does as told, but for ``resume``."""

    def __init__(self, resume: Callable[[], None] = lambda: None) -> None:
        self.resume = resume
        self.closed = False

    def rest(self) -> None:
        pass

    def close(self) -> None:
        self.closed = True


@dataclass
class Other:
    """The rank at work.

    Attributes:
        line: rank 0's end.
        ended: how its work ended.
    """

    line: Line
    ended: Future[None]

    def told(self, *orders: Any) -> Any:
        """What it answers to the last of these."""
        for order in orders:
            self.line.send(order)
        return self.line.receive()


@pytest.fixture
def other(monkeypatch: pytest.MonkeyPatch) -> Iterator[Other]:
    """It meets nobody: its group has one rank."""
    monkeypatch.setattr(Place, "meet", lambda self, store, config: TorchGroup(HashStore(), 0, 1))
    monkeypatch.setattr(worker, "foresee", lambda config, group: None)
    here, there = socket.socketpair()
    line, own = Line(here, Answer), Line(there, Order)
    with ThreadPoolExecutor(1) as pool:
        yield Other(line, pool.submit(Worker(own, Place(1, 2, 1, 2), HashStore()).serve))
        line.close()
    own.close()


def opens(monkeypatch: pytest.MonkeyPatch, open_model: Callable[..., Any]) -> None:
    monkeypatch.setattr(worker, "build", open_model)


def fails(error: Exception) -> Callable[..., Any]:
    def failing(*_: object) -> None:
        raise error

    return failing


def test_too_few_gpus_are_refused_before_any_rank_waits_for_another(other: Other, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(place, "choose", lambda config: Choice("cuda", "triton", torch.float16))
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    answer = other.told(Build(CONFIG))
    assert isinstance(answer, Refused) and type(answer.error()) is ConfigError
    assert "needs a GPU for each rank, and this machine, which has 2 of them, has 1" in answer.cause


@pytest.mark.parametrize("error", [ConfigError(SAID), ModelError(SAID), PeerLost(SAID)])
def test_who_cannot_open_a_model_says_so_and_waits_for_the_next(error: Exception, other: Other, monkeypatch: pytest.MonkeyPatch) -> None:
    groups: list[TorchGroup] = []
    opens(monkeypatch, lambda config, group: (groups.append(group), fails(error)()))
    assert other.told(Build(CONFIG)) == Done()
    failed = other.told(Connect("one"))
    assert isinstance(failed, Failed) and failed.lost == isinstance(error, PeerLost)
    assert failed.lost or (failed.refused is not None and (type(failed.refused.error()), failed.refused.cause) == (type(error), SAID))
    assert other.told(Close()) == Closed() and groups[0].closed, "who waits for it in a collective fails"
    runner = OwnRunner()
    opens(monkeypatch, lambda config, group: runner)
    assert other.told(Build(CONFIG)) == Done()
    assert other.told(Connect("two"), Resume()) == Done()
    assert other.told(Close()) == Closed() and runner.closed
    other.line.end()
    other.ended.result(SEEN_S)


def test_what_is_broken_ends_the_rank(other: Other, monkeypatch: pytest.MonkeyPatch) -> None:
    opens(monkeypatch, fails(RuntimeError(SAID)))
    assert other.told(Build(CONFIG)) == Done()
    failed = other.told(Connect("one"))
    assert isinstance(failed, Failed) and not failed.lost and failed.refused is None and SAID in failed.traceback
    assert isinstance(other.ended.exception(SEEN_S), RuntimeError)


@pytest.mark.parametrize("midway", [False, True])
def test_who_cannot_wake_up_rests_on_unless_others_wait_for_it(midway: bool, other: Other, monkeypatch: pytest.MonkeyPatch) -> None:
    def open_model(config: EngineConfig, group: TorchGroup) -> OwnRunner:
        def resume() -> None:
            if midway:
                group.close()
            raise ConfigError(SAID)

        return OwnRunner(resume)

    opens(monkeypatch, open_model)
    assert other.told(Build(CONFIG)) == Done()
    answer = other.told(Connect("one"), Rest(), Resume())
    if midway:
        assert isinstance(answer, Failed) and answer.refused is None and SAID in answer.cause
        assert isinstance(other.ended.exception(SEEN_S), ConfigError)
    else:
        assert answer == Refused("config", SAID)
        assert other.told(Rest(), Resume()) == answer
