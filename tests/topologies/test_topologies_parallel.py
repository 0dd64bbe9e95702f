"""Two ranks through every topology: the answers of one, and the death of either is the engine's."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psutil
import pytest
from engines import Answer, difference, whole
from failing_rank import SAID, capture_as_a_gpu, starve_after_a_rest
from small_model import write_small_model

from mqlab.client.base import BaseClient
from mqlab.client.embed import embed
from mqlab.config import EngineConfig, Timing
from mqlab.contract.processes import ended, gone
from mqlab.contract.rig import CLOSE_S, FAST, SEEN_S, Stopwatch, assert_nothing_new, begin, held, outcome, pass_time, read
from mqlab.contract.waiting import until
from mqlab.errors import ConfigError, EngineDeadError, EngineStartError, ModelError, MqlabError
from mqlab.front.frontend import Frontend
from mqlab.model.parallel import ranks
from mqlab.topologies import TOPOLOGIES, make_client
from mqlab.types import Pooling, Request, SamplingParams
from mqlab.wire.wiring import Wiring

ENDLESS = SamplingParams(temperature=0, max_tokens=None, ignore_eos=True)
GREEDY = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
SEEDED = SamplingParams(temperature=0.9, top_p=0.95, top_k=50, seed=7, max_tokens=8, ignore_eos=True)
ASKED: list[tuple[list[int], SamplingParams]] = [
    ([504, 3575, 282, 4649], GREEDY),
    ([28, 198, 30, 260, 3575], SEEDED),
    (list(range(1000, 1100)), GREEDY),
    ([42, 7], SamplingParams(temperature=0, max_tokens=8, logprobs=2, prompt_logprobs=1, repetition_penalty=1.3)),
    ([9, 8, 7], SamplingParams(temperature=0, max_tokens=8, allowed_token_ids=(5, 6, 77, 900), min_tokens=4, stop_token_ids=(6,))),
    ([11, 12, 13, 14], SamplingParams(n=2, temperature=0.8, seed=3, max_tokens=8, logit_bias={17: 4.0})),
]
POOLED = Request("pooled", list(range(200, 240)), SamplingParams(max_tokens=0), pooling=Pooling("mean"))


@dataclass(frozen=True)
class Answers:
    """What an engine gave."""

    choices: list[Answer]
    vector: list[float]

    def differences(self, wanted: Answers) -> list[str]:
        pairs = zip(self.choices, wanted.choices, strict=True)
        found = [f"request {i}: {text}" for i, (one, other) in enumerate(pairs) if (text := difference(one, other))]
        return found if self.vector == pytest.approx(wanted.vector, abs=1e-4) else [*found, "the embedding"]


async def ask(client: BaseClient) -> Answers:
    """All of it at once."""
    front = Frontend.of(client)
    embedding, *choices = await asyncio.gather(embed(client, POOLED), *(whole(front, prompt, params) for prompt, params in ASKED))
    return Answers(choices, list(embedding.values))


def client_of(model: Path, topology: str, ranks: int = 2, timing: Timing = FAST, **config: Any) -> BaseClient:
    fields = {"num_kv_blocks": 96, "max_model_len": 512, "max_num_seqs": 16, "num_threads": 1, "log_stats_interval": 0, **config}
    engine = EngineConfig(model=str(model), tensor_parallel_size=ranks, **fields)
    return make_client(topology, Wiring.of(engine, timing=timing))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory, model_folder: Path) -> Path:
    return write_small_model(tmp_path_factory.mktemp("model") / "three-heads", model_folder, kv_heads=3)


@pytest.fixture(scope="module")
def wanted(model: Path) -> Answers:
    """What one process gives."""

    async def alone() -> Answers:
        async with client_of(model, "inproc", ranks=1) as client:
            return await ask(client)

    return asyncio.run(alone())


def worker_of(client: BaseClient) -> psutil.Process:
    """The process of rank 1."""
    found = [child for child in psutil.Process(client.info.pid).children() if child.cmdline()[-1] == "rank-1"]
    assert len(found) == 1
    return found[0]


async def kill_idle(client: BaseClient) -> None:
    worker = worker_of(client)
    watch = Stopwatch()
    worker.kill()
    await _seen_dead(client)
    assert watch.seconds < SEEN_S
    await _assert_all_told(client, worker.pid, await outcome(client.stats()))


async def kill_in_a_step(client: BaseClient) -> None:
    worker = worker_of(client)
    stream = await begin(client, Request("endless", [42], ENDLESS))
    watch = Stopwatch()
    worker.kill()
    error = await outcome(read(stream))
    assert watch.seconds < SEEN_S
    await _assert_all_told(client, worker.pid, error)


async def _seen_dead(client: BaseClient) -> None:
    async with asyncio.timeout(SEEN_S):
        while (await client.check()).ok:
            await pass_time(FAST.health_interval)


async def _assert_all_told(client: BaseClient, worker: int, error: object) -> None:
    """Of which process, and how it ended: to whoever read a stream, and to whoever asks now."""
    said = f"rank-1 process {worker} was killed by SIGKILL"
    assert isinstance(error, EngineDeadError) and said in error.cause
    assert said in (await client.check()).detail


async def exercise(client: BaseClient, wanted: Answers, then: Callable[[BaseClient], Any]) -> None:
    """The answers, the death, and a close in bounded time that leaves nothing."""
    async with client:
        assert (await ask(client)).differences(wanted) == []
        pids = client.info.pid, worker_of(client)
        await then(client)
        watch = Stopwatch()
    assert watch.seconds < CLOSE_S + FAST.stop_grace
    assert ended(pids[1]) and (gone(pids[0]) or pids[0] == os.getpid())


FEW = {"inproc": kill_idle, "mq": kill_in_a_step, "v1": kill_idle}


@pytest.mark.parametrize("topology", FEW)
async def test_the_answers_of_one_rank_and_the_death_of_the_other(topology: str, model: Path, wanted: Answers) -> None:
    await exercise(client_of(model, topology), wanted, FEW[topology])


@pytest.mark.full
@pytest.mark.parametrize("then", [kill_idle, kill_in_a_step])
@pytest.mark.parametrize("topology", TOPOLOGIES)
async def test_every_topology(topology: str, then: Callable[[BaseClient], Any], model: Path, wanted: Answers) -> None:
    await exercise(client_of(model, topology), wanted, then)


ON_DEVICE = {"device": "cpu", "attention_backend": "torch"}
WAYS: dict[str, dict[str, Any]] = {
    "three ranks": {"ranks": 3},
    "multi-step": {"num_scheduler_steps": 4},
    "overlapped": {"async_scheduling": True},
    "overlapped multi-step": {"async_scheduling": True, "num_scheduler_steps": 3},
    "guessed": {"num_speculative_tokens": 4, "prompt_lookup_min": 1, "async_scheduling": True},
    "chunks, preempted": {"max_num_batched_tokens": 32, "num_kv_blocks": 14},
    "on the device's runner": ON_DEVICE,
    "on the device's runner, overlapped multi-step": {**ON_DEVICE, "async_scheduling": True, "num_scheduler_steps": 3},
    "on the device's runner, eager, three ranks": {**ON_DEVICE, "enforce_eager": True, "ranks": 3},
    "on the device's runner, guessed": {"device": "cpu", "attention_backend": "sdpa", "num_speculative_tokens": 3, "prompt_lookup_min": 1},
}


@pytest.mark.full
@pytest.mark.parametrize("way", WAYS)
async def test_every_way_to_the_same_answers(way: str, model: Path, wanted: Answers) -> None:
    async with client_of(model, "v1", **WAYS[way]) as client:
        assert (await ask(client)).differences(wanted) == []


@pytest.mark.full
async def test_more_ranks_than_heads_of_keys(tmp_path: Path, model_folder: Path) -> None:
    one_head = write_small_model(tmp_path / "one-head", model_folder)
    async with client_of(one_head, "inproc", ranks=1) as alone, client_of(one_head, "v1", ranks=3) as three:
        assert (await ask(three)).differences(await ask(alone)) == []


async def test_ranks_that_do_not_suit_are_refused_before_anything_starts(model: Path) -> None:
    before = held()
    with pytest.raises(ConfigError, match="--tensor-parallel-size=4 does not suit LlamaForCausalLM, which has 3 query and 3 KV heads"):
        async with client_of(model, "inproc", ranks=4):
            pass
    assert_nothing_new(before)


def test_what_cannot_be_shared_is_refused() -> None:
    for model, why in (("echo", "without a model"), ("sim:llama-3.2-1b@h100", "a simulated device")):
        with pytest.raises(ConfigError, match=f"--tensor-parallel-size=2 is not possible .*{why.split()[-1]}"):
            engine = EngineConfig(model=model, tensor_parallel_size=2)
            Wiring.of(engine).build_core()


async def test_a_rank_that_fails_at_start_is_told_with_its_own_traceback(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranks, "ENTRY", "failing_rank:run_rank")
    before, watch = held(), Stopwatch()
    with pytest.raises(EngineStartError, match=f"rank-1 process [0-9]+ failed: ValueError: {SAID}") as caught:
        async with client_of(model, "inproc"):
            pass
    assert watch.seconds < SEEN_S and "in run_rank" in caught.value.log_tail
    assert_nothing_new(before)


@pytest.mark.full
async def test_what_another_rank_refuses_is_told_as_if_the_first_had(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranks, "ENTRY", "failing_rank:refusing_rank")
    before, client = held(), client_of(model, "inproc")
    error = await outcome(client.start(), timeout=120)
    assert type(error) is ModelError and str(error) == SAID and not getattr(error, "__notes__", [])
    del error  # whose frames hold what was half made
    await client.close()
    assert_nothing_new(before)


@pytest.mark.full
@pytest.mark.parametrize("starved", [0, 1])
async def test_a_rank_that_alone_cannot_wake_up_ends_the_engine_and_says_why(
    starved: int, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other one waits for it in a collective, then and for ever."""
    monkeypatch.setattr(ranks, "ENTRY", f"failing_rank:{'starved' if starved else 'capturing'}_rank")
    capture_as_a_gpu(monkeypatch.setattr)
    if not starved:
        starve_after_a_rest(monkeypatch.setattr)
    async with client_of(model, "inproc", **ON_DEVICE, max_num_seqs=4) as client:
        worker = worker_of(client)
        await client.sleep(1)
        error = await outcome(client.wake_up(), timeout=4 * SEEN_S)
        assert isinstance(error, MqlabError) and SAID in str(error) and "too little memory left to capture graphs" in str(error)
        await _seen_dead(client)
        assert SAID in (await client.check()).detail
        await until(lambda: ended(worker), timeout=SEEN_S)


@pytest.mark.full
async def test_a_stopped_rank_is_a_step_beyond_its_limit(model: Path) -> None:
    async with client_of(model, "v1", timing=replace(FAST, step_limit=1.0)) as client:
        worker, stream = worker_of(client), await begin(client, Request("endless", [42], ENDLESS))
        worker.suspend()
        error = await outcome(read(stream), timeout=2 * SEEN_S)
        assert isinstance(error, EngineDeadError) and "step_limit" in error.cause
        await until(lambda: ended(worker), timeout=SEEN_S)


@pytest.mark.full
@pytest.mark.parametrize(("topology", "config"), [("inproc", {}), ("v1", {}), ("v1", ON_DEVICE)])
async def test_a_model_sleeps_and_wakes_on_all_ranks(topology: str, config: dict[str, Any], model: Path, wanted: Answers) -> None:
    async with client_of(model, topology, **config) as client:
        first = worker_of(client)
        await client.sleep(1)
        await client.wake_up()
        assert (await ask(client)).differences(wanted) == [] and worker_of(client) == first
        await client.sleep(2)
        assert ended(first)
        await client.wake_up()
        assert (await ask(client)).differences(wanted) == []
        info = await client.load(str(model), tensor_parallel_size=1)
        assert info.epoch == 2 and (await ask(client)).differences(wanted) == []


@pytest.mark.full
async def test_a_rank_with_half_a_word_said_dies_with_its_engine(model: Path) -> None:
    """Killed in the middle of a step, the engine leaves no other rank behind, whatever that waits for."""
    async with client_of(model, "v1") as client:
        worker = worker_of(client)
        await begin(client, Request("endless", [42], ENDLESS))
        psutil.Process(client.info.pid).kill()
        await until(lambda: ended(worker), timeout=SEEN_S)
