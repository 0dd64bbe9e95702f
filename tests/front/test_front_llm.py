"""The offline LLM over echo engines: order, laziness, refusals, interrupts, and what it leaves behind."""

from __future__ import annotations

import asyncio
import gc
import io
import itertools
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from mqlab import LLM, ClientClosedError, ConfigError, InvalidRequest, ModelError, MqlabError, SamplingParams
from mqlab.contract.waiting import until_sync
from mqlab.topologies import TOPOLOGIES
from mqlab.types import EngineStats

Echo = Callable[..., Any]
ENDLESS = SamplingParams(max_tokens=None, ignore_eos=True)


@pytest.fixture
def llm(echo: Echo) -> Iterator[LLM]:
    with LLM.of(echo()) as made:
        yield made


def idle(llm: LLM) -> EngineStats:
    """The statistics once nothing runs any more."""
    until_sync(lambda: not (llm.stats().running or llm.stats().waiting))
    return llm.stats()


def texts(completions: Any) -> list[str]:
    return [completion.text for completion in completions]


@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_answers_keep_the_order_of_the_prompts(echo: Echo, topology: str) -> None:
    with LLM.of(echo(topology)) as llm:
        prompts = [f"{'word ' * (i % 7 + 1)}{i}" for i in range(100)]
        params = [SamplingParams(max_tokens=i % 5 + 1) for i in range(100)]
        answers = llm.generate(prompts, params, use_tqdm=False)
        assert [answer.usage.completion_tokens for answer in answers] == [one.max_tokens for one in params]
        assert all((prompt * 5).startswith(answer.text) for prompt, answer in zip(prompts, answers, strict=True))
        assert repr(llm) == f"<LLM 'echo' topology={topology} ready>"
    assert repr(llm) == f"<LLM 'echo' topology={topology} closed>"


def test_one_prompt_of_each_kind(llm: LLM) -> None:
    ids = llm.generate("hello", use_tqdm=False)[0].prompt_tokens
    talk = [{"role": "user", "content": "hello"}]
    answers = llm.generate(["hello", list(ids), talk], SamplingParams(max_tokens=1), use_tqdm=False)
    assert answers[0].prompt_tokens == answers[1].prompt_tokens == ids
    assert answers[2].prompt_tokens == llm.chat(talk, use_tqdm=False)[0].prompt_tokens == llm.chat([talk], use_tqdm=False)[0].prompt_tokens
    assert llm.generate([], use_tqdm=False) == llm.chat([], use_tqdm=False) == []


def test_a_conversation_is_printed_as_it_is_asked_for(llm: LLM) -> None:
    tools = [{"type": "function", "function": {"name": "look_up", "parameters": {"type": "object"}}}]
    talk = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "Well"}]
    shown = SamplingParams(max_tokens=400, ignore_eos=True, skip_special_tokens=False)
    (told,) = llm.chat(talk, shown, use_tqdm=False, tools=tools)
    (onward,) = llm.chat(talk, shown, use_tqdm=False, continue_final_message=True)
    assert "look_up" in told.text and "<tool_call>" in told.text
    assert onward.text[: onward.text.index("Well") + 4].endswith("<|im_start|>assistant\nWell")
    assert onward.text[onward.text.index("Well") + 4 :].startswith("<|im_start|>"), "the echo begins anew where the prompt ends"


@pytest.mark.parametrize(
    ("prompts", "message"),
    [
        (["fine", ""], r"prompts\[1\]: the prompt has 0 tokens"),
        (["fine", "fine", []], r"prompts\[2\]: the prompt has 0 tokens"),
        ([5, 6, 7], r"prompts\[0\]: the prompt 5 is of type int; a prompt is text, a list of token ids"),
        ([[1], [True]], r"prompts\[1\]: prompt\[0\]=True"),
        (["fine", [3] * 8192], r"prompts\[1\]: the prompt has 8192 tokens; at most 8191 fit"),
        ([b"bytes"], r"prompts\[0\]: the prompt is of type bytes"),
    ],
)
def test_a_bad_prompt_is_named_before_anything_is_sent(llm: LLM, prompts: Any, message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        llm.generate(prompts, use_tqdm=False)
    assert llm.stats().steps == 0
    assert texts(llm.generate("still fine", SamplingParams(max_tokens=2), use_tqdm=False)) == ["still fine"]


def test_params_must_match_the_prompts(llm: LLM) -> None:
    with pytest.raises(InvalidRequest, match="1 sampling params for 2 prompts"):
        llm.generate(["a", "b"], [SamplingParams()])


@pytest.mark.parametrize("talks", [["hi"], [["hi"]], [[{"role": "user", "content": "x"}], [5]]])
def test_what_is_no_conversation_is_refused(llm: LLM, talks: Any) -> None:
    with pytest.raises(InvalidRequest, match=r"conversations\[\d\]=.* is not a list of messages"):
        llm.chat(talks)


async def test_it_works_inside_a_running_task(echo: Echo) -> None:
    """What a notebook cell does: nothing is patched, and the caller's loop goes on."""
    before = asyncio.get_running_loop(), asyncio.get_event_loop_policy(), asyncio.run
    with LLM.of(echo()) as llm:
        assert texts(llm.generate("hello", SamplingParams(max_tokens=1), use_tqdm=False)) == ["hello"]
        assert texts(llm.generate_iter(["hello"], SamplingParams(max_tokens=1))) == ["hello"]
    assert before == (asyncio.get_running_loop(), asyncio.get_event_loop_policy(), asyncio.run)


def test_it_works_from_another_thread(llm: LLM) -> None:
    answers: list[Any] = []
    thread = threading.Thread(target=lambda: answers.extend(llm.generate("hello", SamplingParams(max_tokens=1), use_tqdm=False)))
    thread.start()
    thread.join()
    assert texts(answers) == ["hello"]


def test_iter_pulls_lazily_and_hands_out_in_order(llm: LLM) -> None:
    pulled = 0

    def endless() -> Iterator[str]:
        nonlocal pulled
        for pulled in itertools.count(1):
            yield f"number {pulled} "

    answers = llm.generate_iter(endless(), SamplingParams(max_tokens=2), window=8)
    assert pulled == 0
    for handed_out in range(1, 50):
        answer = next(answers)
        assert answer.text == "number "
        assert answer.prompt_tokens == llm.generate(f"number {handed_out} ", use_tqdm=False)[0].prompt_tokens
        assert pulled < handed_out + 8
    answers.close()  # pyright: ignore[reportAttributeAccessIssue]
    idle(llm)


def test_iter_keeps_at_most_a_window_in_flight(echo: Echo) -> None:
    with LLM.of(echo(device_time=0.001)) as llm:
        alive: list[int] = []

        def watched() -> Iterator[str]:
            for i in range(30):
                stats = llm.stats()
                alive.append(stats.running + stats.waiting)
                yield f"n {i}"

        assert len(list(llm.generate_iter(watched(), SamplingParams(max_tokens=20), window=4))) == 30
    assert 1 <= max(alive) <= 3


@pytest.mark.parametrize("leave", ["close", "drop"])
def test_leaving_iter_aborts_what_runs(echo: Echo, leave: str) -> None:
    pulled = 0

    def prompts() -> Iterator[list[int]]:
        nonlocal pulled
        for pulled in itertools.count(1):
            yield [2] if pulled == 1 else [3, 4, 5]

    # A step takes its time, or the others would be through before they are left.
    with LLM.of(echo(eos_token_ids=(2,), device_time=0.005)) as llm:
        answers = llm.generate_iter(prompts(), SamplingParams(max_tokens=None), window=8)
        assert next(answers).choices[0].finish == "stop"
        until_sync(lambda: llm.stats().running == pulled - 1)
        if leave == "close":
            answers.close()  # pyright: ignore[reportAttributeAccessIssue]
        else:
            del answers
        assert idle(llm).finished == {"stop": 1, "length": 0, "abort": pulled - 1, "error": 0}
        assert texts(llm.generate("go", SamplingParams(max_tokens=1), use_tqdm=False)) == ["go"]


def test_iter_names_the_bad_prompt_in_its_turn(llm: LLM) -> None:
    answers = llm.generate_iter(["a", "b", "", "c"], SamplingParams(max_tokens=1))
    assert texts(itertools.islice(answers, 2)) == ["a", "b"]
    with pytest.raises(InvalidRequest, match=r"prompts\[2\]: the prompt has 0 tokens"):
        next(answers)
    idle(llm)


def test_an_error_of_the_callers_generator_aborts_the_rest(llm: LLM) -> None:
    def broken() -> Iterator[list[int]]:
        yield [1, 2]
        until_sync(lambda: llm.stats().running == 1)
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        list(llm.generate_iter(broken(), ENDLESS))
    assert idle(llm).finished["abort"] == 1


def test_a_window_below_one_is_refused(llm: LLM) -> None:
    with pytest.raises(InvalidRequest, match="window=0 must be at least 1"):
        llm.generate_iter([], window=0)


@pytest.mark.parametrize("call", ["generate", "generate_iter"])
def test_an_interrupt_aborts_and_leaves_the_llm_usable(echo: Echo, call: str) -> None:
    main = threading.main_thread().ident
    assert main is not None
    with LLM.of(echo("aio", device_time=0.001)) as llm:

        def interrupt() -> None:
            until_sync(lambda: llm.stats().running == 3 and sys._current_frames()[main].f_code is threading.Condition.wait.__code__)
            signal.pthread_kill(main, signal.SIGINT)

        helper = threading.Thread(target=interrupt)
        helper.start()
        with pytest.raises(KeyboardInterrupt):
            if call == "generate":
                llm.generate([[1, 2, 3]] * 3, ENDLESS, use_tqdm=False)
            else:
                list(llm.generate_iter([[1, 2, 3]] * 3, ENDLESS))
        helper.join()
        assert idle(llm).finished["abort"] == 3
        assert texts(llm.generate("hello", SamplingParams(max_tokens=1), use_tqdm=False)) == ["hello"]


def test_the_bar_shows_requests_and_rate(llm: LLM, capsys: pytest.CaptureFixture[str]) -> None:
    llm.generate(["a", "b"], SamplingParams(max_tokens=3))
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "2/2" in shown.err
    assert "tok/s" in shown.err


class Bare:
    """A stream as some notebooks have it: no fileno, no encoding, no isatty."""

    def __init__(self) -> None:
        self.written = ""

    def write(self, text: str) -> int:
        self.written += text
        return len(text)


@pytest.mark.parametrize("stream", [Bare(), io.StringIO(), None])
def test_the_bar_needs_no_real_stream(llm: LLM, monkeypatch: pytest.MonkeyPatch, stream: Any) -> None:
    monkeypatch.setattr(sys, "stderr", stream)
    assert len(llm.generate(["a", "b"], SamplingParams(max_tokens=3))) == 2
    if stream is not None:
        assert "2/2" in (stream.written if isinstance(stream, Bare) else stream.getvalue())


def test_after_close_all_is_refused(echo: Echo) -> None:
    llm = LLM.of(echo())
    llm.close()
    llm.close()
    for use in (lambda: llm.generate("a"), llm.stats, lambda: llm.generate_iter(["a"])):
        with pytest.raises(ClientClosedError, match="the LLM is closed; make a new one"):
            use()


def test_close_from_another_thread_fails_what_runs(llm: LLM) -> None:
    def close() -> None:
        until_sync(lambda: llm.stats().running == 2)
        llm.close()

    helper = threading.Thread(target=close)
    helper.start()
    with pytest.raises(ClientClosedError):
        llm.generate([[1], [2]], ENDLESS, use_tqdm=False)
    helper.join()


def test_a_blocking_call_on_its_own_loop_is_refused(llm: LLM) -> None:
    async def inside() -> None:
        llm.stats()

    with pytest.raises(MqlabError, match="await the async method"):
        llm._loop.run(inside())


@pytest.mark.parametrize("topology", ["inproc", "v1"])
def test_dropping_it_ends_its_engine(echo: Echo, topology: str) -> None:
    llm = LLM.of(echo(topology))
    pid, own = llm.info.pid, os.getpid()
    del llm
    gc.collect()
    until_sync(lambda: not any(thread.name.startswith("mqlab") for thread in threading.enumerate()))
    assert (pid == own) == (topology == "inproc")
    assert pid == own or not Path(f"/proc/{pid}").exists()


def test_dropped_on_its_own_loop_it_still_ends(echo: Echo) -> None:
    box = [LLM.of(echo())]
    loop = box[0]._loop

    async def drop() -> None:
        box.clear()

    loop.submit(drop()).future.result(5)
    until_sync(lambda: not any(thread.name.startswith("mqlab") for thread in threading.enumerate()))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"colour": 5}, "LLM does not take colour; it takes topology, codec, async_scheduling, attention_backend, block_size"),
        ({"tensor_parallel": 2}, r"LLM does not take tensor_parallel; did you mean tensor_parallel_size\?; it takes topology, codec"),
        ({"block_size": 0}, "--block-size=0 must be at least 1"),
        ({"topology": "ring"}, "--topology='ring' is unknown"),
        ({"codec": "xml"}, "--codec='xml' is unknown"),
    ],
)
def test_wrong_options_are_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        LLM(**options)


@pytest.mark.parametrize("topology", ["inproc", "v1"])
def test_what_the_engine_refuses_is_a_line(topology: str) -> None:
    with pytest.raises(ConfigError, match=r"^--tensor-parallel-size=2 is not possible .*; pass 1$"):
        LLM("sim:llama-3.2-1b@h100", topology=topology, tensor_parallel_size=2)


def test_what_will_not_be_heeded_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    with LLM("echo:smollm2-135m", enforce_eager=True):
        (record,) = caplog.records
    assert record.levelname == "WARNING" and "--enforce-eager does nothing without a model" in record.getMessage()


def test_an_engine_without_a_tokenizer_is_closed_again(echo: Echo) -> None:
    with pytest.raises(ModelError, match="no model folder"):
        LLM.of(echo("v1", path=""))


SCRIPT = """
import itertools
from mqlab import LLM, SamplingParams
from mqlab.topologies import make_client
from mqlab.wire.spec import Spec
from mqlab.wire.wiring import Wiring

print("top level")
llm = LLM.of(make_client({topology!r}, Wiring(Spec("mqlab.engine.echo:build", {{"path": {path!r}}}), log_stats_interval=0)))
print(llm.generate("hello", SamplingParams(max_tokens=1), use_tqdm=False)[0].text)
running = llm.generate_iter(itertools.repeat([3, 4, 5]), SamplingParams(max_tokens=4000), window=4)
next(running)
"""


@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_a_plain_script_without_guard_or_close(model_folder: Path, tmp_path: Path, topology: str) -> None:
    """Its top level runs once, and its exit is clean although requests still run."""
    script = tmp_path / "script.py"
    script.write_text(SCRIPT.format(topology=topology, path=str(model_folder)))
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == ["top level", "hello"]
