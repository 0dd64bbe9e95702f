"""The device runner on this CPU, as the engine uses it: transformers' tokens however scheduled, and the CPU runner's for any request."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from plans import GREEDY, Line
from tiny_serving import prompts, serve

from mqlab.config import EngineConfig
from mqlab.errors import ConfigError
from mqlab.model.accel.accelerator import HostAccelerator
from mqlab.model.accel.runner import DeviceRunner
from mqlab.model.accel.steps import Steps
from mqlab.model.load import build
from mqlab.plan import UNKNOWN, Chunk, Plan, Runner
from mqlab.types import SamplingParams

MakeModel = Callable[..., Any]
NEW = 12
TOKENS = (5, 9, 40, 41, 3, 77, 12, 60, 8, 9, 40, 33, 2, 71, 18, 90, 6, 44, 25, 30)


def config(folder: Path, **fields: Any) -> EngineConfig:
    defaults = {"attention_backend": "torch", "num_kv_blocks": 40, "num_threads": 1, "max_num_seqs": 8, "max_num_batched_tokens": 64}
    return EngineConfig(**{"model": str(folder), **defaults, **fields})


@torch.inference_mode()
def greedy(model: Any, prompt: list[int]) -> tuple[int, ...]:
    tokens = torch.tensor([prompt])
    out = model.generate(tokens, attention_mask=torch.ones_like(tokens), max_new_tokens=NEW, min_new_tokens=NEW, do_sample=False)
    return tuple(out[0, len(prompt) :].tolist())


WAYS: dict[str, dict[str, Any]] = {
    "plain": {},
    "eager": {"enforce_eager": True},
    "few graphs": {"cuda_graph_sizes": (3, 5)},
    "sdpa, preempted": {"attention_backend": "sdpa", "num_kv_blocks": 9},
    "small chunks": {"max_num_batched_tokens": 9, "block_size": 5},
    "cached": {"max_num_batched_tokens": 512, "enable_prefix_caching": True},
    "multi-step": {"num_scheduler_steps": 4},
    "multi-step, eager, preempted": {"num_scheduler_steps": 8, "num_kv_blocks": 9, "enforce_eager": True},
    "async": {"async_scheduling": True},
    "async, small chunks": {"async_scheduling": True, "max_num_batched_tokens": 9, "block_size": 5},
    "async, multi-step, preempted": {"async_scheduling": True, "num_scheduler_steps": 4, "num_kv_blocks": 9},
    "speculated": {"num_speculative_tokens": 3, "prompt_lookup_min": 1, "async_scheduling": True},
}


@pytest.mark.parametrize("way", WAYS)
def test_greedy_tokens_equal_transformers_however_scheduled(way: str, llama: Any, tmp_path: Path) -> None:
    params = SamplingParams(temperature=0, max_tokens=NEW, ignore_eos=True)
    many = prompts(10)
    assert serve(config(tmp_path, **WAYS[way]), [(prompt, params) for prompt in many]) == [greedy(llama, prompt) for prompt in many]


KINDS: list[dict[str, Any]] = [
    {"temperature": 0},
    {"temperature": 1.2, "top_p": 0.9, "top_k": 40},
    {"temperature": 0.8, "logprobs": 2, "max_tokens": NEW - 3},
    {"min_tokens": 5, "stop_token_ids": (1, 4, 9), "max_tokens": NEW - 1},
    {"presence_penalty": 1.0, "repetition_penalty": 1.3},
    {"min_p": 0.05, "logit_bias": {3: 4.0}, "max_tokens": 1},
    {"prompt_logprobs": 1, "top_k": 5},
]


@pytest.mark.parametrize("way", ["plain", "multi-step", "async, multi-step, preempted", "speculated"])
@pytest.mark.parametrize("of", [len(KINDS), 4], ids=["all kinds", "no steering"])
def test_tokens_are_those_of_the_cpu_s_runner(way: str, of: int, make_model: MakeModel, tmp_path: Path) -> None:
    make_model("Llama", tie_word_embeddings=True)
    many = [(prompt, SamplingParams(**{"seed": i, "max_tokens": NEW, **KINDS[i % of]})) for i, prompt in enumerate(prompts(2 * len(KINDS)))]
    fields = {"max_logprobs": -1, **WAYS[way]}
    assert serve(config(tmp_path, **fields), many) == serve(config(tmp_path, **{**fields, "attention_backend": "numba"}), many)


@pytest.fixture
def runner(llama: Any, tmp_path: Path) -> DeviceRunner:
    runner = build(config(tmp_path))
    assert isinstance(runner, DeviceRunner)
    return runner


def decoding(tokens: tuple[int, ...], blocks: tuple[int, ...], **fields: Any) -> Chunk:
    """The last of these tokens, after the others were run."""
    return Chunk("line", tokens[-1:], len(tokens) - 1, blocks, True, **{"params": GREEDY, "seed": 0, **fields})


def alone(runner: Runner, tokens: tuple[int, ...], count: int) -> tuple[int, ...]:
    """What comes after these tokens, computed anew for each."""
    gained: tuple[int, ...] = ()
    for _ in range(count):
        own = Line((*tokens, *gained), (30, 31, 32))
        gained = (*gained, *runner.launch(Plan((own.chunk(0, len(own.tokens)),))).wait().tokens[0])
    return gained


def test_a_plan_follows_one_in_flight(runner: DeviceRunner) -> None:
    """Its chunks in another order, of rows that ran more and fewer rounds, and beside a prompt."""
    first, second, third = TOKENS, TOKENS[:9], TOKENS[3:]
    wanted = [alone(runner, tokens, 6) for tokens in (first, second, third)]
    owned = {first: (7, 2), second: (9, 4), third: (1, 3)}
    begun = runner.launch(Plan(tuple(Line(tokens, owned[tokens]).chunk(0, len(tokens)) for tokens in (first, second))))
    then = Plan(
        (
            Chunk("line", (UNKNOWN,), 9, owned[second], True, GREEDY, 0, follows=1, rounds=2),
            Chunk("line", (UNKNOWN,), 20, owned[first], True, GREEDY, 0, follows=0, rounds=4),
        )
    )
    more = runner.launch(then)
    assert begun.wait().tokens == (wanted[0][:1], wanted[1][:1])
    last = runner.launch(
        Plan(
            (
                Chunk("line", (UNKNOWN,), 24, owned[first], True, GREEDY, 0, follows=1),
                Chunk("line", (UNKNOWN,), 11, owned[second], True, GREEDY, 0, follows=0),
                Line(third, owned[third]).chunk(0, len(third)),
            )
        )
    )
    assert more.wait().tokens == (wanted[1][1:3], wanted[0][1:5])
    assert last.wait().tokens == (wanted[0][5:6], wanted[1][3:4], wanted[2][:1])


def test_more_rounds_beside_a_prompt_go_on_from_their_own_tokens(runner: DeviceRunner) -> None:
    """Only the first of them follows the plan before."""
    wanted, blocks = alone(runner, TOKENS, 4), (7, 2)
    begun = runner.launch(Plan((Line(TOKENS, blocks).chunk(0, 20),)))
    more = Chunk("line", (UNKNOWN,), 20, blocks, True, GREEDY, 0, follows=0, rounds=3)
    beside = runner.launch(Plan((more, Line(TOKENS[:9], (4,)).chunk(0, 9))))
    assert (begun.wait().tokens, beside.wait().tokens[0]) == ((wanted[:1],), wanted[1:])


def test_what_needs_the_host_is_done_before_the_next_plan_that_follows_it(runner: DeviceRunner) -> None:
    """Logprobs of two rounds, then drafts: neither is known when the next plan is launched."""
    wanted, blocks = alone(runner, TOKENS, 8), (7, 2, 5)
    asked = SamplingParams(temperature=0, logprobs=1)
    begun = runner.launch(Plan((msgspec.structs.replace(Line(TOKENS, blocks).chunk(0, 20), params=asked),)))
    more = runner.launch(Plan((Chunk("line", (UNKNOWN,), 20, blocks, True, asked, 0, follows=0, rounds=2),)))
    guess = runner.launch(Plan((Chunk("line", (UNKNOWN,), 22, blocks, True, GREEDY, 0, follows=0),)))
    assert (begun.wait().tokens, more.wait().tokens, guess.wait().tokens) == ((wanted[:1],), (wanted[1:3],), (wanted[3:4],))
    guesses = (wanted[3], wanted[4], (wanted[5] + 1) % 97)
    drafted = runner.launch(Plan((Chunk("line", guesses, 23, blocks, True, GREEDY, 0, drafts=2),)))
    after = runner.launch(Plan((Chunk("line", (UNKNOWN,), 25, blocks, True, GREEDY, 0, follows=0),)))
    assert (drafted.wait().tokens, after.wait().tokens) == ((wanted[4:6],), (wanted[6:7],))


def test_a_graph_gives_what_eager_steps_give(llama: Any, tmp_path: Path) -> None:
    """For every number of sequences, the rest of the graph's rows being padding."""
    graphs, eager = build(config(tmp_path, cuda_graph_sizes=(2, 5, 8))), build(config(tmp_path, enforce_eager=True))
    many = [(tokens, (row,)) for row, tokens in enumerate([TOKENS[row : row + 7] for row in range(8)])]
    for count in range(1, 9):
        prompt = Plan(tuple(Line(tokens, blocks).chunk(0, len(tokens) - 1, samples=False) for tokens, blocks in many[:count]))
        plan = Plan(tuple(decoding(tokens, blocks, rounds=1 + row % 3) for row, (tokens, blocks) in enumerate(many[:count])))
        answers = []
        for runner in (graphs, eager):
            runner.launch(prompt).wait()
            answers.append(runner.launch(plan).wait().tokens)
        assert answers[0] == answers[1]


def test_a_probe_may_wrap_the_sampler(runner: DeviceRunner) -> None:
    inner, seen = runner.sampler, []

    def timed(*args: Any) -> torch.Tensor:
        seen.append(args)
        return inner(*args)

    wanted = alone(runner, TOKENS, 2)
    runner.sampler = timed
    assert alone(runner, TOKENS, 2) == wanted
    assert len(seen) == 2


def test_a_rest_frees_the_cache_whoever_holds_what_was_launched(runner: DeviceRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    """Eager, in a graph, and with the host in between."""
    freed: list[weakref.ref[torch.Tensor]] = []
    asked = SamplingParams(temperature=0, logprobs=1)

    def note(steps: Steps, *args: Any) -> None:
        freed.extend(weakref.ref(pool.keys) for pool in args[1])
        init(steps, *args)

    init = Steps.__init__
    monkeypatch.setattr(Steps, "__init__", note)
    runner.rest()
    runner.resume()
    prompt = Plan((Line(TOKENS, (7, 2)).chunk(0, 20),))
    plans = [prompt, Plan((decoding(TOKENS, (7, 2), rounds=2),)), Plan((decoding(TOKENS, (7, 2), params=asked),))]
    flights = [runner.launch(plan) for plan in plans]
    answers = [flight.wait() for flight in flights]
    runner.rest()
    assert freed and not any(one() is not None for one in freed)
    assert [flight.wait() for flight in flights] == answers


def test_a_device_that_runs_out_of_memory_or_fails(runner: DeviceRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    def out_of_memory(*args: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory.\nTried to allocate")

    def broken(*args: Any) -> None:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    runner.rest()
    with monkeypatch.context() as patch:
        patch.setattr(HostAccelerator, "capture", out_of_memory)
        with pytest.raises(ConfigError, match=r"too little memory left to capture graphs \(CUDA out of memory\.\); lower"):
            runner.resume()
    with pytest.raises(RuntimeError, match="rests"):
        runner.launch(Plan((Line(TOKENS, (7, 2)).chunk(0, 20),)))
    runner.resume()
    assert len(alone(runner, TOKENS, 1)) == 1
    monkeypatch.setattr(HostAccelerator, "finish", broken)
    monkeypatch.setattr(HostAccelerator, "release", broken)
    runner.close()


def test_a_runner_that_rests_or_is_closed_says_so(runner: DeviceRunner) -> None:
    plan = Plan((Line(TOKENS, (7, 2)).chunk(0, 20),))
    runner.rest()
    with pytest.raises(RuntimeError, match="rests"):
        runner.launch(plan)
    runner.resume()
    flight = runner.launch(plan)
    runner.close()
    runner.close()
    assert len(flight.wait().tokens[0]) == 1
    with pytest.raises(RuntimeError, match="closed"):
        runner.launch(plan)
