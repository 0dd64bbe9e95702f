"""Embeddings of a small model against transformers' last hidden states, through a whole engine."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import torch

from mqlab.client.embed import embed
from mqlab.config import EngineConfig
from mqlab.params import PoolingKind
from mqlab.topologies import make_client
from mqlab.types import Embedding, Pooling, Request, SamplingParams
from mqlab.wire.wiring import Wiring

KINDS: tuple[PoolingKind, ...] = ("mean", "last", "cls")
PROMPTS = [list(range(10, 90)), [7], [50, 40, 30, 20] * 9, list(range(10, 90))]
EngineOf = Callable[..., AbstractAsyncContextManager[Any]]


@pytest.fixture
def model(make_model: Any) -> Any:
    return make_model("Llama")


@pytest.fixture
def engine(model: Any, tmp_path: Path) -> EngineOf:
    """``engine(**settings)``: a client of the small model, not started."""
    del model

    def make(**settings: Any) -> Any:
        common = {"dtype": "float32", "num_threads": 1, "num_kv_blocks": 64, "log_stats_interval": 0}
        return make_client("inproc", Wiring.of(EngineConfig(model=str(tmp_path), **{**common, **settings})))

    return make


def wanted(model: Any, prompt: list[int], kind: PoolingKind, normalize: bool) -> torch.Tensor:
    with torch.inference_mode():
        states = model.model(torch.tensor([prompt])).last_hidden_state[0]
    pooled = {"mean": states.mean(dim=0), "last": states[-1], "cls": states[0]}[kind]
    return torch.nn.functional.normalize(pooled, dim=0) if normalize else pooled


def check(model: Any, found: Embedding, prompt: list[int], kind: PoolingKind, normalize: bool) -> None:
    assert found.prompt_tokens == len(prompt)
    torch.testing.assert_close(torch.tensor(found.values), wanted(model, prompt, kind, normalize), atol=1e-4, rtol=1e-4)


async def ask(client: Any, prompt: list[int], kind: PoolingKind, normalize: bool, number: int = 0) -> Embedding:
    return await embed(client, Request(f"{kind}-{number}", prompt, SamplingParams(max_tokens=0), pooling=Pooling(kind, normalize)))


@pytest.mark.parametrize(
    "settings",
    [{}, {"max_num_batched_tokens": 16, "max_num_seqs": 4}, {"enable_prefix_caching": False}, {"num_kv_blocks": 8, "max_model_len": 100}],
    ids=["plain", "chunks of 16", "no prefix cache", "room for one and a half"],
)
async def test_several_at_once_and_again(model: Any, engine: EngineOf, settings: dict[str, Any]) -> None:
    """The second round finds the prompts in the prefix cache, where there is one; one prompt is twice in each."""
    async with engine(**settings) as client:
        assert client.info.hidden_size == 96
        for _ in range(2):
            for kind in KINDS:
                found = await asyncio.gather(*(ask(client, prompt, kind, True, i) for i, prompt in enumerate(PROMPTS)))
                for one, prompt in zip(found, PROMPTS, strict=True):
                    check(model, one, prompt, kind, True)
        assert (await client.stats()).blocks_used == 0


@pytest.mark.parametrize("kind", KINDS)
async def test_the_states_as_they_are(model: Any, engine: EngineOf, kind: PoolingKind) -> None:
    async with engine() as client:
        for prompt in PROMPTS:
            check(model, await ask(client, prompt, kind, False), prompt, kind, False)


async def test_after_and_beside_generation(model: Any, engine: EngineOf) -> None:
    """The blocks of a prompt that was answered hold keys and values, no hidden states."""
    prompt = PROMPTS[0]
    params = SamplingParams(max_tokens=20, temperature=0, ignore_eos=True)
    async with engine() as client:
        alone = [delta.tokens async for delta in client.generate(Request("a", prompt, params))]
        stream = client.generate(Request("b", prompt, params))
        beside = [(await anext(stream)).tokens]
        for kind in KINDS:
            check(model, await ask(client, prompt, kind, True), prompt, kind, True)
        beside += [delta.tokens async for delta in stream]
    assert [*chain(*beside)] == [*chain(*alone)]


async def test_a_prompt_as_long_as_the_context(model: Any, engine: EngineOf) -> None:
    prompt = [5 + i % 90 for i in range(128)]
    async with engine(max_model_len=128) as client:
        for kind in KINDS:
            check(model, await ask(client, prompt, kind, True), prompt, kind, True)
