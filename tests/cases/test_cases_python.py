"""``mqlab.LLM`` where programs really use it: beside a running loop, in a script, a command, a prompt, and when the engine is hit.

C14: a loop runs already. C43: prompts without tokens. C49: no main guard, and tokenizers and threads before. With a kernel these, and C50
(wrong arguments of a magic), C76 (streams without a file number) and C21 (a notebook that must fail), are in tests/lab.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from serving import FAST, echo_wiring

from mqlab import LLM, EngineDeadError, InvalidRequest, SamplingParams
from mqlab.contract.waiting import until_sync
from mqlab.errors import ClientClosedError
from mqlab.topologies import make_client

REMOTE = ["v1", "mq"]
TOPOLOGIES = ["inproc", "aio", *REMOTE]
SLOW: dict[str, Any] = {"device_time": 0.005, "max_model_len": 10**6, "num_blocks": 10**5, "max_num_seqs": 2}
ENDLESS = SamplingParams(max_tokens=100_000, ignore_eos=True)


@pytest.fixture
def echo(model_folder: Path, topology: str) -> Iterator[LLM]:
    with LLM.of(make_client(topology, echo_wiring(model_folder, **SLOW))) as llm:
        yield llm


def run(source: str, folder: Path, *options: str, stdin: bool = False) -> subprocess.CompletedProcess[str]:
    """Python on a source, given as a file, or on its standard input."""
    script = folder / "script.py"
    script.write_text(source)
    command = [sys.executable, "-W", "error::DeprecationWarning", *options, *([] if stdin else [str(script)])]
    return subprocess.run(command, cwd=folder, input=source if stdin else None, capture_output=True, text=True, timeout=30, check=False)


LOOP = """
import asyncio, sys, threading
from mqlab import LLM, SamplingParams
params = SamplingParams(temperature=0, max_tokens=2)
talk = [{{"role": "user", "content": "Hi"}}]

async def use():
    loop, policy, run = asyncio.get_running_loop(), asyncio.get_event_loop_policy(), asyncio.run
    with LLM(topology={topology!r}, kv_cache_gb=0.1, num_threads=1) as llm:
        print(llm.generate("The capital of France is", params)[0].text)
        print([one.text for one in llm.generate_iter(iter(["The capital of France is"] * 2), params)])
        print(len(llm.chat(talk, params)), llm.stats().running)
    ticked = asyncio.Event()
    loop.call_soon(ticked.set)
    await asyncio.wait_for(ticked.wait(), 5)
    assert asyncio.get_running_loop() is loop and asyncio.get_event_loop_policy() is policy and asyncio.run is run
    assert "nest_asyncio" not in sys.modules and "uvloop" not in type(loop).__module__

asyncio.run(use())
print(sorted(thread.name for thread in threading.enumerate() if "mqlab" in thread.name))
"""


@pytest.mark.parametrize("topology", ["inproc", "v1"])
def test_it_works_beside_a_running_loop_and_patches_nothing(tmp_path: Path, topology: str) -> None:
    done = run(LOOP.format(topology=topology), tmp_path)
    assert done.stdout.splitlines() == [" Paris.", "[' Paris.', ' Paris.']", "1 0", "[]"], done.stderr
    assert done.returncode == 0


ONCE = """
print("top")
import warnings
import concurrent.futures
import tokenizers
warnings.simplefilter("error")
tokenizer = tokenizers.Tokenizer.from_file({folder!r} + "/tokenizer.json")
pool = concurrent.futures.ThreadPoolExecutor(4)
print(len(list(pool.map(lambda text: tokenizer.encode(text).ids, ["a b c"] * 100))))
from mqlab import LLM, SamplingParams
llm = LLM(topology="v1", kv_cache_gb=0.1, num_threads=1)
print(llm.generate("The capital of France is", SamplingParams(temperature=0, max_tokens=2), use_tqdm=False)[0].text)
"""


@pytest.mark.parametrize("how", ["script", "standard input", "prompt"])
def test_whoever_starts_it_runs_once(model_folder: Path, tmp_path: Path, how: str) -> None:
    """No guard, no close; tokenizers and threads were used before."""
    options = ["-i"] if how == "prompt" else []
    done = run(ONCE.format(folder=str(model_folder)), tmp_path, *options, stdin=how != "script")
    assert done.stdout.splitlines() == ["top", "100", " Paris."], done.stderr
    assert done.returncode == 0
    for word in ("fork", "bootstrapping", "Traceback", "Warning"):
        assert word not in done.stderr


def in_background(call: Any) -> tuple[threading.Thread, list[BaseException]]:
    """A thread that makes a call, and what it raised."""
    errors: list[BaseException] = []

    def work() -> None:
        try:
            call()
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=work, name="caller")
    thread.start()
    return thread, errors


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP], ids=lambda number: number.name)
@pytest.mark.parametrize("topology", REMOTE)
def test_an_engine_that_is_hit_ends_every_call(echo: LLM, number: signal.Signals) -> None:
    """One runs, two queue behind it, one is a generator."""
    assert FAST.health_interval < 1
    generate, seen = in_background(lambda: echo.generate(["a b c"] * 3, ENDLESS, use_tqdm=False))
    pulled, also_seen = in_background(lambda: list(echo.generate_iter(iter(["d e f"]), ENDLESS)))
    until_sync(lambda: (echo.stats().running, echo.stats().waiting) == (2, 2))
    os.kill(echo.info.pid, number)
    generate.join(5)
    pulled.join(5)
    assert not generate.is_alive()
    assert not pulled.is_alive()
    for error in (*seen, *also_seen):
        assert isinstance(error, EngineDeadError)
        assert "stopped" in str(error) if number == signal.SIGSTOP else "SIGKILL" in str(error)
    assert len(seen) == len(also_seen) == 1
    with pytest.raises(EngineDeadError):
        echo.generate("x", use_tqdm=False)


@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_close_while_calls_run_is_bounded_and_ends_them(echo: LLM) -> None:
    thread, errors = in_background(lambda: echo.generate(["a b c"] * 5, ENDLESS, use_tqdm=False))
    until_sync(lambda: echo.stats().running == 2)
    closing = threading.Thread(target=echo.close)
    closing.start()
    closing.join(5)
    assert not closing.is_alive()
    thread.join(5)
    assert not thread.is_alive()
    assert [type(error) for error in errors] == [ClientClosedError]


@pytest.mark.parametrize("topology", REMOTE)
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP], ids=lambda number: number.name)
def test_close_beside_a_hit_engine_is_bounded(echo: LLM, number: signal.Signals) -> None:
    os.kill(echo.info.pid, number)
    closing = threading.Thread(target=echo.close)
    closing.start()
    closing.join(5)
    assert not closing.is_alive()


EMPTY: list[Any] = ["", [""], ["x", ""], [[]], [[1], []], [[{"role": "user"}]]]


@pytest.mark.parametrize("topology", ["inproc", "v1"])
def test_what_has_no_tokens_is_refused_and_harms_nobody(echo: LLM) -> None:
    for prompts in EMPTY:
        with pytest.raises(InvalidRequest) as refusal:
            echo.generate(prompts, SamplingParams(max_tokens=2), use_tqdm=False)
        bad = len(prompts) - 1 if isinstance(prompts, list) else 0
        assert f"prompts[{bad}]" in str(refusal.value), prompts
        assert echo.generate("Hello world", SamplingParams(max_tokens=2), use_tqdm=False)[0].text == "Hello world"
        assert (echo.stats().running, echo.stats().waiting, echo.stats().blocks_used) == (0, 0, 0), prompts


@pytest.mark.parametrize("topology", ["inproc"])
def test_no_prompts_are_no_completions(echo: LLM) -> None:
    assert echo.generate([], use_tqdm=False) == []
    assert list(echo.generate_iter(iter([]))) == []
