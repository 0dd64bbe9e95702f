"""The default model through text: whatever the topology, the same final answers; streamed or whole, the same text."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from mqlab.client.contract import EngineClient
from mqlab.config import EngineConfig
from mqlab.front.frontend import Frontend
from mqlab.topologies import TOPOLOGIES, make_client
from mqlab.types import Output, SamplingParams
from mqlab.wire.wiring import Wiring

PROMPT = "The three primary colours are"
TALK = [{"role": "user", "content": "Name two animals. 🙂"}]
GREEDY = SamplingParams(temperature=0, max_tokens=24)
CASES: list[tuple[Any, SamplingParams]] = [
    (PROMPT, GREEDY),
    (TALK, SamplingParams(temperature=0, max_tokens=40)),
    (PROMPT, SamplingParams(seed=7, max_tokens=24, top_p=0.9)),
    (PROMPT, SamplingParams(seed=7, n=3, max_tokens=16)),
    ("One, two, three, four,", SamplingParams(temperature=0, max_tokens=40, stop=("x, sev", "nine"))),
]
_ANSWERS: dict[int, list[tuple[Any, ...]]] = {}


def make(topology: str, model_folder: Path) -> EngineClient:
    config = EngineConfig(
        model=str(model_folder), dtype="float32", num_threads=1, num_kv_blocks=64, max_model_len=256, log_stats_interval=0
    )
    return make_client(topology, Wiring.of(config))


pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def front(model_folder: Path) -> AsyncIterator[Frontend]:
    client = make("aio", model_folder)
    await client.start()
    yield Frontend.of(client)
    await client.close()


async def answers(front: Frontend) -> list[tuple[Any, ...]]:
    completions = [await front.complete(prompt, params) for prompt, params in CASES]
    return [(one.prompt_tokens, one.choices, one.usage) for one in completions]


@pytest.mark.full  # a smaller suite has the two halves: this over echo engines, and the model's tokens on every topology
@pytest.mark.xdist_group("all topologies")
@pytest.mark.parametrize("topology", TOPOLOGIES)
async def test_all_topologies_give_the_same_answers(topology: str, model_folder: Path) -> None:
    client = make(topology, model_folder)
    await client.start()
    try:
        got = await answers(Frontend.of(client))
    finally:
        await client.close()
    assert _ANSWERS.setdefault(0, got) == got


def whole_of(outputs: list[Output], index: int) -> tuple[str, tuple[int, ...], Any, Any]:
    own = [output for output in outputs if output.index == index]
    tokens = tuple(token for output in own for token in output.tokens)
    return "".join(output.text for output in own), tokens, own[-1].finish, own[-1].stop_reason


async def test_streamed_is_whole(front: Frontend) -> None:
    for prompt, params in CASES:
        completion = await front.complete(prompt, params)
        outputs = [output async for output in front.generate(prompt, params)]
        for choice in completion.choices:
            assert whole_of(outputs, choice.index) == (choice.text, choice.tokens, choice.finish, choice.stop_reason)
            assert choice.stop_reason or choice.text == front.text.tokenizer.decode(choice.tokens)
        assert outputs[-1].usage == completion.usage


async def test_stops_taken_from_its_own_text(front: Frontend) -> None:
    """Stops inside a token, across two, of a whole token, with a leading space, and two that overlap."""
    golden = (await front.complete(PROMPT, GREEDY)).choices[0]
    pieces = [front.text.tokenizer.decode([token]) for token in golden.tokens]
    at = next(i for i in range(3, 20) if len(pieces[i]) > 3 and len(pieces[i + 1]) > 2 and pieces[i].isascii())
    inside, across, token = pieces[at][1:3], pieces[at][-2:] + pieces[at + 1][:2], pieces[at]
    spaced = next(piece for piece in pieces[3:] if piece.startswith(" "))
    for stop in [(inside,), (across,), (token,), (spaced,), (across, pieces[at][-1:] + pieces[at + 1])]:
        params = SamplingParams(temperature=0, max_tokens=24, stop=stop)
        completion = await front.complete(PROMPT, params)
        outputs = [output async for output in front.generate(PROMPT, params)]
        first = min(golden.text.find(one) for one in stop)
        assert completion.text == golden.text[:first] == "".join(output.text for output in outputs)
        assert completion.choices[0].finish == "stop"
        assert completion.choices[0].stop_reason in stop
        assert outputs[-1].usage == completion.usage


async def test_many_scripts_at_once_match_the_tokenizer(front: Frontend) -> None:
    """A small model copies a row of emoji or words when asked to go on with it."""
    prompts = ["🙂 " * 8, "žluťoučký kůň " * 4, "שלום " * 8, "你好，" * 8, "Ünïcödé " * 6, "🙃🙂" * 6, " a  b" * 8, "नमस्ते " * 4]
    params = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True)

    async def streamed(prompt: str) -> list[Output]:
        return [output async for output in front.generate(prompt, params)]

    for outputs in await asyncio.gather(*map(streamed, prompts)):
        tokens = [token for output in outputs for token in output.tokens]
        assert "".join(output.text for output in outputs) == front.text.tokenizer.decode(tokens)
        assert all("\ufffd" not in output.text for output in outputs[:-1])


async def test_choices_differ_repeat_and_can_be_drawn_alone(front: Frontend) -> None:
    """Among the likeliest 20 tokens in float32: rounding depends on the batch, and must not move a draw to a neighbour."""
    params = SamplingParams(n=3, seed=7, top_k=20, max_tokens=12)
    several = await front.complete(PROMPT, params)
    assert len({choice.tokens for choice in several.choices}) == 3
    assert (await front.complete(PROMPT, params)).choices == several.choices
    for choice in several.choices:
        alone = await front.complete(PROMPT, SamplingParams(seed=7 + choice.index, top_k=20, max_tokens=12))
        assert alone.choices[0].tokens == choice.tokens
