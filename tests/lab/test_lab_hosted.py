"""What a session runs, whichever layout it is: its processes, its URL, its entry in the registry, and attaching to it."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from mqlab.config import Timing
from mqlab.contract.processes import gone
from mqlab.contract.waiting import until_sync
from mqlab.errors import ClientClosedError, ConfigError, EngineDeadError, EngineStartError
from mqlab.lab.hosted import Hosted
from mqlab.types import SamplingParams
from mqlab.wire.registry import Entry, Registry
from mqlab.wire.spec import Spec
from mqlab.wire.wiring import Wiring

TOPOLOGIES = ("inproc", "aio", "mq", "v1")
FAST = Timing(health_interval=0.05, idle_interval=0.05, stop_grace=0.5)
HELLO = "Hello there world"
SHORT = SamplingParams(max_tokens=3)
ENDLESS = SamplingParams(max_tokens=None, ignore_eos=True)


@pytest.fixture
def host(model_folder: Path) -> Iterator[Any]:
    """Starts echo engines; all are released afterwards."""
    started: list[Hosted] = []

    def host(topology: str, *, timing: Timing = FAST, wraps: tuple[Spec, ...] = (), **core: Any) -> Hosted:
        spec = Spec("mqlab.engine.echo:build", {"path": str(model_folder), **core})
        started.append(Hosted(topology, Wiring(spec, wraps, timing=timing)))
        return started[-1]

    yield host
    for hosted in started:
        hosted.release()


def say(hosted: Hosted, params: SamplingParams = SHORT) -> str:
    return hosted.thread.run(hosted.front.complete(HELLO, params)).text


def complete(url: str) -> str:
    return httpx.post(f"{url}/v1/completions", json={"prompt": HELLO, "max_tokens": 3}, timeout=10).json()["choices"][0]["text"]


@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_processes_url_and_entry(host: Any, topology: str) -> None:
    hosted = host(topology)
    pids = hosted.pids()
    assert pids["engine"] == hosted.info.pid != os.getpid()
    assert (pids["front"] == os.getpid()) == (topology in ("mq", "v1"))
    (entry,) = Registry().entries()
    assert entry == hosted.entry
    assert (entry.role, entry.model, entry.topology, entry.owner_pid) == ("session", "echo", topology, os.getpid())
    assert entry.pid == pids["engine"], "never the notebook's own process"
    assert (hosted.url is None) == (topology in ("mq", "v1"))
    url = hosted.open_http()
    assert url == hosted.open_http() == hosted.url and url.startswith("http://127.0.0.1:")
    assert complete(url) == say(hosted) == HELLO
    assert Registry().entries()[0].url == url
    hosted.release()
    assert Registry().entries() == [] and gone(pids["engine"])
    with pytest.raises(httpx.ConnectError):
        complete(url)
    with pytest.raises(ClientClosedError):
        hosted.open_http()


@pytest.mark.parametrize("topology", ["inproc", "mq"])
def test_attached_it_works_and_leaving_leaves_it(host: Any, topology: str) -> None:
    hosted = host(topology, device_time=0.001)
    own = hosted.thread.submit(hosted.front.complete(HELLO, ENDLESS))
    until_sync(lambda: hosted.client.glance().running == 1)
    attached = Hosted.attach(hosted.entry, FAST)
    try:
        assert attached.pids() == hosted.pids() and attached.info == hosted.info and attached.entry == hosted.entry
        assert attached.client.shape == hosted.client.shape
        assert say(attached) == HELLO
        assert attached.check(5).ok and attached.client.glance().running == 1
        assert complete(attached.open_http()) == HELLO
    finally:
        attached.release()
    assert len(Registry().entries()) == 1 and not own.done
    assert say(hosted) == HELLO
    own.cancel()


@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_stopped_by_another_it_is_dead_and_says_so(host: Any, topology: str) -> None:
    hosted = host(topology)
    attached = Hosted.attach(hosted.entry, FAST)
    assert Registry().stop(hosted.entry)
    for each in (hosted, attached):
        until_sync(lambda each=each: not each.check(5).ok)
        with pytest.raises(EngineDeadError):
            say(each)
    attached.release()


@pytest.mark.parametrize("topology", ["inproc", "aio"])
def test_a_hung_step_is_seen_and_ended_from_outside(host: Any, topology: str) -> None:
    """Nothing of it reaches this process: the loop turns, the counters can be read, the engine can be ended."""
    wraps = (Spec("mqlab.probes.faults:FaultyCore", {"hang_step": 2, "hold_gil": True}),)
    hosted = host(topology, timing=Timing(health_interval=0.05, step_limit=0.5, stop_grace=0.2), wraps=wraps)
    answer = hosted.thread.submit(hosted.front.complete(HELLO, ENDLESS))
    until_sync(lambda: hosted.client.glance().running == 1)
    with pytest.raises(EngineDeadError, match="step_limit"):
        answer.result(10)
    assert hosted.check(1).state == "dead"
    until_sync(lambda: gone(hosted.pids()["engine"]))


def test_a_hung_step_does_not_hold_up_the_release(host: Any) -> None:
    wraps = (Spec("mqlab.probes.faults:FaultyCore", {"hang_step": 1, "hold_gil": True}),)
    hosted = host("inproc", wraps=wraps)
    hosted.thread.submit(hosted.front.complete(HELLO, ENDLESS))
    until_sync(lambda: hosted.check(1).phase == "step")
    began = time.monotonic()
    hosted.release()
    assert time.monotonic() - began < 5 and gone(hosted.pids()["engine"])


@pytest.mark.parametrize("topology", ["inproc", "v1"])
def test_what_cannot_start_leaves_nothing(topology: str) -> None:
    with pytest.raises(EngineStartError, match="told to fail"):
        Hosted(topology, Wiring(Spec("mqlab.engine.echo:build"), (Spec("mqlab.probes.faults:FaultyCore", {"fail_build": True}),)))
    with pytest.raises(ConfigError, match="newest"):
        Hosted(topology, Wiring(Spec("mqlab.engine.echo:build")), "newest")
    assert Registry().entries() == []


def test_attaching_to_what_is_not_there_says_so(tmp_path: Path) -> None:
    facts: dict[str, Any] = {"role": "serve", "model": "echo", "topology": "mq", "url": "http://x", "owner_pid": 1}
    with pytest.raises(ConfigError, match=r"no private socket.*http://x"):
        Hosted.attach(Entry.of(os.getpid(), socket=None, **facts))
    with pytest.raises(EngineStartError, match="is it still running"):
        Hosted.attach(Entry.of(os.getpid(), socket=str(tmp_path / "front"), **facts))


async def test_the_front_serves_on_while_this_process_is_busy(host: Any) -> None:
    """A cell that never returns to any loop holds up nobody who asks the front over HTTP."""
    hosted = await asyncio.to_thread(host, "inproc")
    assert complete(hosted.open_http()) == HELLO


def test_a_killed_front_is_told(host: Any) -> None:
    hosted = host("aio")
    os.kill(hosted.pids()["front"], signal.SIGKILL)
    until_sync(lambda: not hosted.check(5).ok)
    with pytest.raises(EngineDeadError, match="SIGKILL"):
        say(hosted)
    assert Registry().entries() == []
