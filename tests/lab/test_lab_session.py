"""A session, from outside of a notebook."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import pytest

from mqlab.config import EngineConfig
from mqlab.contract.waiting import until, until_sync
from mqlab.errors import ClientClosedError, ConfigError, EngineDeadError, InvalidRequest, ModelError
from mqlab.lab.session import Session
from mqlab.types import SamplingParams
from mqlab.wire.spec import Spec
from mqlab.wire.wiring import Wiring

TOPOLOGIES = ("inproc", "aio", "mq", "v1")
HELLO = "Hello there world"
LONG = {"max_tokens": 8000, "ignore_eos": True}

Start = Callable[..., Session]


@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_sync_use(start: Start, topology: str) -> None:
    lab = start(topology)
    whole = lab.generate_sync(HELLO, max_tokens=5)
    pieces = list(lab.stream(HELLO, max_tokens=5))
    assert whole.text == "".join(piece.text for piece in pieces) == "Hello there worldHello there"
    assert pieces[-1].finish == "length" and pieces[-1].usage == whole.usage


@pytest.mark.parametrize("topology", TOPOLOGIES)
async def test_async_use_from_a_running_loop(start: Start, topology: str) -> None:
    lab = await asyncio.to_thread(start, topology)
    answers = await asyncio.gather(*(lab.generate([number] * 3, max_tokens=4) for number in range(100, 132)))
    assert [answer.choices[0].tokens for answer in answers] == [(number,) * 4 for number in range(100, 132)]
    assert "".join([piece.text async for piece in lab.stream(HELLO, max_tokens=3)]) == HELLO
    # The blocking twin works here as well: the session's loop is not this one.
    assert lab.generate_sync(HELLO, max_tokens=3).text == HELLO


async def test_chat_takes_text_and_messages(start: Start) -> None:
    lab = start()
    by_text = await lab.chat("Hi", max_tokens=8)
    by_messages = lab.chat_sync([{"role": "user", "content": "Hi"}], max_tokens=8)
    assert by_text.prompt_tokens == by_messages.prompt_tokens
    assert by_text.choices == by_messages.choices


async def test_a_prompt_as_a_vector(start: Start) -> None:
    lab = start()
    found = await lab.embed(HELLO)
    assert found == lab.embed_sync(HELLO)
    assert (found.prompt_tokens, len(found.values)) == (3, lab.info.hidden_size)
    assert found != lab.embed_sync(HELLO, "last", normalize=False)


async def test_logprobs_priority_and_salt_go_along(start: Start) -> None:
    lab = start()
    (choice,) = (await lab.generate(HELLO, max_tokens=3, logprobs=1, priority=2, salt="mine")).choices
    assert "".join(one.text for one in choice.logprobs or ()) == HELLO
    pieces = list(lab.stream(HELLO, max_tokens=3, logprobs=1, priority=2, salt="mine"))
    assert tuple(one for piece in pieces for one in piece.logprobs or ()) == choice.logprobs


def test_bad_requests_leave_the_session_usable(start: Start) -> None:
    lab = start()
    with pytest.raises(InvalidRequest, match="max_tokens=-1"):
        lab.generate_sync(HELLO, max_tokens=-1)
    with pytest.raises(InvalidRequest, match="0 tokens"):
        lab.generate_sync([])
    with pytest.raises(TypeError, match="warmth"):
        lab.generate_sync(HELLO, warmth=1)
    assert lab.generate_sync(HELLO, max_tokens=3, stop=" world").text == "Hello there"


@pytest.mark.parametrize("topology", TOPOLOGIES)
async def test_cancelled_wait_aborts_the_request(start: Start, topology: str) -> None:
    lab = start(topology, device_time=0.001)
    task = asyncio.create_task(lab.generate(HELLO, **LONG))
    await until(lambda: lab.stats().running == 1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await until(lambda: lab.stats().running == 0)
    assert (await lab.generate(HELLO, max_tokens=3)).text == HELLO


@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("topology", TOPOLOGIES)
async def test_cancelled_stream_aborts_its_request(start: Start, topology: str, n: int) -> None:
    lab = start(topology, device_time=0.001)
    began = asyncio.Event()

    async def read() -> None:
        async for _ in lab.stream(HELLO, n=n, **LONG):
            began.set()

    task = asyncio.create_task(read())
    await began.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await until(lambda: lab.stats().running == 0)
    assert (await lab.generate(HELLO, max_tokens=3)).text == HELLO


async def test_cancelled_before_the_first_output(start: Start) -> None:
    lab = start(device_time=3600.0)

    async def read() -> None:
        async for _ in lab.stream(HELLO):
            pass

    task = asyncio.create_task(read())
    await until(lambda: lab.health().phase == "step")
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_stream_read_after_stop_says_so(start: Start) -> None:
    lab = start()
    fresh, begun, plain = (lab.stream(HELLO, **LONG) for _ in range(3))
    reading = aiter(begun)
    await anext(reading)
    lab.stop()
    for stream in (aiter(fresh), reading):
        with pytest.raises(ClientClosedError):
            await anext(stream)
    with pytest.raises(ClientClosedError):
        next(iter(plain))


async def test_leaving_a_stream_aborts_its_request(start: Start) -> None:
    lab = start(device_time=0.001)
    stream = aiter(lab.stream(HELLO, **LONG))
    assert (await anext(stream)).text is not None
    await stream.aclose()  # pyright: ignore[reportAttributeAccessIssue]
    await until(lambda: lab.stats().running == 0)
    for _ in lab.stream(HELLO, **LONG):
        break
    await until(lambda: lab.stats().running == 0)


def test_interrupt_aborts_the_request_and_keeps_the_session(start: Start) -> None:
    lab = start(device_time=0.001)

    def interrupt() -> None:
        until_sync(lambda: lab.stats().running == 1)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    interrupter = threading.Thread(target=interrupt)
    interrupter.start()
    with pytest.raises(KeyboardInterrupt):
        lab.generate_sync(HELLO, **LONG)
    interrupter.join()
    until_sync(lambda: lab.stats().running == 0)
    assert lab.generate_sync(HELLO, max_tokens=3).text == HELLO


def test_counts_and_throughput_come_from_the_page(start: Start) -> None:
    lab = start(device_time=0.002)
    stream = iter(lab.stream(HELLO, max_tokens=200, ignore_eos=True))
    next(stream)
    until_sync(lambda: lab.throughput()["running"].iloc[-1] == 1)
    assert sum(len(output.tokens) for output in stream)
    until_sync(lambda: lab.stats().generation_tokens == 200)
    lab.stop()
    frame = lab.throughput()
    seconds = frame["seconds"].diff().fillna(frame["seconds"])
    assert round(float((frame["generation_tokens_per_s"] * seconds).to_numpy().sum())) == 200
    assert round(float((frame["prompt_tokens_per_s"] * seconds).to_numpy().sum())) == 3
    assert frame["running"].iloc[-1] == 0
    assert lab.plot_throughput()._repr_png_().startswith(b"\x89PNG")
    assert "peak" in repr(lab.plot_throughput())


def test_plot_is_saved(start: Start, tmp_path: Path) -> None:
    lab = start()
    lab.generate_sync(HELLO)
    assert lab.plot_throughput().save(tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("topology", ("mq", "v1"))
def test_dead_engine_is_named(start: Start, topology: str) -> None:
    lab = start(topology)
    os.kill(lab.info.pid, signal.SIGKILL)
    until_sync(lambda: not lab.health().ok)
    for _ in range(2):
        with pytest.raises(EngineDeadError, match="SIGKILL"):
            lab.generate_sync(HELLO)
    with pytest.raises(EngineDeadError, match="SIGKILL"):
        lab.profile(1)
    assert "dead" in repr(lab) and "SIGKILL" in lab._repr_mimebundle_()["text/html"]


def test_stop_is_idempotent_and_named(start: Start, until_gone: Callable[[int], None]) -> None:
    lab = start()
    lab.stop()
    lab.stop()
    until_gone(lab.info.pid)
    assert lab.stopped and "stopped" in repr(lab)
    for use in (lab.stats, lab.health, lambda: lab.generate_sync(HELLO), lambda: lab.stream(HELLO), lambda: lab.call("ping")):
        with pytest.raises(ClientClosedError, match="lab is stopped"):
            use()


@pytest.mark.parametrize("topology", TOPOLOGIES)
async def test_stop_ends_open_requests(start: Start, topology: str) -> None:
    lab = start(topology, device_time=0.001)
    tasks = [asyncio.create_task(lab.generate(HELLO, **LONG)) for _ in range(4)]
    await until(lambda: lab.stats().running == 4)
    lab.stop()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert all(isinstance(result, ClientClosedError) for result in results), results


def test_context_managers(start: Start) -> None:
    with start() as lab:
        assert lab.generate_sync(HELLO, max_tokens=3).text == HELLO
    assert lab.stopped

    async def use() -> Session:
        async with start() as lab:
            assert (await lab.generate(HELLO, max_tokens=3)).text == HELLO
        return lab

    assert asyncio.run(use()).stopped


@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_dropped_session_leaves_nothing(model_folder: Path, topology: str, until_gone: Callable[[int], None]) -> None:
    lab = Session(Wiring(Spec("mqlab.engine.echo:build", {"path": str(model_folder)})), topology)
    lab.generate_sync(HELLO)
    pid = lab.info.pid
    del lab
    gc.collect()
    if topology in ("mq", "v1"):
        until_gone(pid)


def test_interpreter_exit_leaves_nothing(model_folder: Path, until_gone: Callable[[int], None]) -> None:
    """Also: a script without a main guard runs once, and nothing warns (C49)."""
    code = f"""
print("top level")
from concurrent.futures import ThreadPoolExecutor
from mqlab.lab.session import Session
from mqlab.text.tokenizer import Tokenizer
from mqlab.wire.spec import Spec
from mqlab.wire.wiring import Wiring
from pathlib import Path
folder = {str(model_folder)!r}
tokenizer = Tokenizer.load(Path(folder))
pool = ThreadPoolExecutor(2)
list(pool.map(lambda text: tokenizer.encode(text, False), ["a", "b"]))
lab = Session(Wiring(Spec("mqlab.engine.echo:build", {{"path": folder}})))
print(lab.info.pid, lab.generate_sync("Hello there world", max_tokens=3).text)
"""
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and done.stderr == "", done.stderr
    first, second = done.stdout.splitlines()
    pid, _, text = second.partition(" ")
    assert (first, text) == ("top level", HELLO)
    until_gone(int(pid))


def test_failed_start_leaves_nothing() -> None:
    with pytest.raises(ConfigError, match="no_such_factory"):
        Session(Wiring(Spec("mqlab.engine.echo:no_such_factory", {})))
    with pytest.raises(ModelError, match="names no model folder"):
        Session(Wiring(Spec("mqlab.engine.echo:build", {})))
    with pytest.raises(ConfigError, match=r"^--tensor-parallel-size=2 is not possible .*; pass 1$"):
        Session.of(EngineConfig(model="sim:llama-3.2-1b@h100", tensor_parallel_size=2))
    with pytest.raises(ModelError, match="/no/such/model"):
        Session.of(EngineConfig(model="/no/such/model"))


@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_representations(start: Start, topology: str) -> None:
    lab = start(topology, name="<echo> & co")
    for stopped in (False, True):
        if stopped:
            lab.stop()
        bundle = lab._repr_mimebundle_()
        assert set(bundle) == {"text/plain", "text/html"}
        root = ElementTree.fromstring(bundle["text/html"])
        text = " ".join("".join(root.itertext()).split())
        assert "<echo> & co" in text and topology in text and ("stopped" if stopped else "ready") in text
        assert len(root.findall(".//{http://www.w3.org/2000/svg}rect")) == len(lab._hosted.client.shape.processes)
        assert "script" not in bundle["text/html"]


def test_log_is_kept(start: Start) -> None:
    lab = start(wiring={"log_stats_interval": 0.05}, device_time=0.01)
    assert "no log yet" in lab.log()
    lab.generate_sync(HELLO, max_tokens=20, ignore_eos=True)
    until_sync(lambda: "tokens/s" in lab.log())
    lab.stop()
    assert "tokens/s" in lab.log()


def test_profile_shows_the_engine(start: Start, tmp_path: Path) -> None:
    lab = start(device_time=0.0, max_num_seqs=4)
    taken = threading.Event()

    def keep_busy() -> None:
        while not taken.is_set():
            lab.generate_sync(HELLO, max_tokens=100, ignore_eos=True, n=8)

    load = threading.Thread(target=keep_busy)
    load.start()
    try:
        capture = lab.profile(1, folder=tmp_path)
    finally:
        taken.set()
        load.join()
    assert {stack[0] for stack in capture.stacks.counts} == {"engine", "front"}
    assert any("mqlab/engine/" in frame for frame in capture.stacks.frames)


def test_profile_shows_an_engine_that_is_stuck(start: Start, tmp_path: Path) -> None:
    """Its stacks are what tells why nothing moves; under inproc too, for the loop that is stuck is not this process's."""
    lab = start("inproc", wiring={"wraps": (Spec("corespy:Stuck"),)})
    answer = lab._hosted.thread.submit(lab._hosted.front.complete(HELLO, SamplingParams(max_tokens=1)))
    until_sync(lambda: lab.health().phase == "step")
    capture = lab.profile(1, folder=tmp_path)
    assert any("stuck_here" in frame for frame in capture.stacks.frames)
    lab.stop()
    with pytest.raises(ClientClosedError):
        answer.result()
