"""What a runner gives beyond tokens, and several tokens at once: against plain forward passes of transformers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from plans import GREEDY, Line, lines

from mqlab.config import EngineConfig
from mqlab.model.load import build
from mqlab.plan import Chunk, Plan, Runner, SampledTokens, Scored
from mqlab.types import SamplingParams

MakeModel = Callable[..., Any]
TOKENS = (5, 9, 40, 41, 3, 77, 12, 60, 8, 9, 40, 33, 2, 71, 18, 90, 6, 44, 25, 30)


@pytest.fixture
def model(make_model: MakeModel) -> Any:
    return make_model("Llama", tie_word_embeddings=True)


RUNNERS: dict[str, dict[str, Any]] = {
    "cpu": {},
    "device, graphs": {"attention_backend": "torch", "max_num_seqs": 4, "num_speculative_tokens": 3},
    "device, eager": {"attention_backend": "sdpa", "enforce_eager": True},
}


@pytest.fixture(params=RUNNERS)
def runner(request: pytest.FixtureRequest, model: Any, tmp_path: Path) -> Iterator[Runner]:
    runner = build(EngineConfig(model=str(tmp_path), dtype="float32", num_kv_blocks=16, num_threads=1, **RUNNERS[request.param]))
    yield runner
    runner.close()


def run(runner: Runner, *chunks: Chunk) -> SampledTokens:
    return runner.launch(Plan(chunks)).wait()


@pytest.fixture
def line() -> Line:
    return lines([TOKENS], [7, 2, 9])[0]


@torch.inference_mode()
def logprobs_of(model: Any, tokens: tuple[int, ...]) -> torch.Tensor:
    return model(torch.tensor([tokens])).logits[0].log_softmax(-1)


def changed(chunk: Chunk, **fields: Any) -> Chunk:
    return msgspec.structs.replace(chunk, **fields)


@pytest.mark.parametrize("cut", [1, 7, 16, 19, 20])
@pytest.mark.parametrize("width", [0, 3, -1])
def test_prompt_logprobs_of_any_chunks(cut: int, width: int, model: Any, runner: Runner, line: Line) -> None:
    params = SamplingParams(temperature=0, prompt_logprobs=width)
    wanted = logprobs_of(model, TOKENS)
    rows: list[list[tuple[int, float]]] = []
    ranks: list[int] = []
    for start, end in ((0, cut), (cut, len(TOKENS))):
        if start == end:
            continue
        targets = TOKENS[start + 1 : end + 1]
        scored = Scored(0, targets) if targets else None
        chunk = changed(line.chunk(start, end, samples=end == len(TOKENS)), params=params, scored=scored)
        sampled = run(runner, chunk)
        if scored is not None:
            rows += sampled.prompts[0].rows()
            ranks += sampled.prompts[0].rank_list()
    assert [row[0][0] for row in rows] == list(TOKENS[1:])
    for position, row in enumerate(rows):
        for token, value in row:
            assert value == pytest.approx(float(wanted[position, token]), abs=1e-4)
        best = wanted[position].topk(97 if width < 0 else width).values if width else torch.empty(0)
        assert [value for _, value in row[1:]] == pytest.approx(best.tolist(), abs=1e-4)
    assert ranks == [int((wanted[i] > wanted[i, token]).sum()) + 1 for i, token in enumerate(TOKENS[1:])]


def test_a_long_prompt_is_scored_without_all_its_logits_at_once(model: Any, runner: Runner) -> None:
    tokens = tuple((7 * i * i + 3) % 97 for i in range(150))
    (long,) = lines([tokens], range(10))
    params = SamplingParams(temperature=0, prompt_logprobs=0)
    chunk = changed(long.chunk(0, 150), params=params, scored=Scored(0, tokens[1:]))
    values = [row[0][1] for row in run(runner, chunk).prompts[0].rows()]
    wanted = logprobs_of(model, tokens)
    assert values == pytest.approx([float(wanted[i, token]) for i, token in enumerate(tokens[1:])], abs=1e-3)


def test_scores_begin_where_they_are_asked_for(model: Any, runner: Runner, line: Line) -> None:
    chunk = changed(line.chunk(0, 20), params=SamplingParams(temperature=0, prompt_logprobs=1), scored=Scored(4, TOKENS[5:9]))
    rows = run(runner, chunk).prompts[0].rows()
    wanted = logprobs_of(model, TOKENS)
    assert [row[0] for row in rows] == [(TOKENS[i], pytest.approx(float(wanted[i - 1, TOKENS[i]]), abs=1e-4)) for i in range(5, 9)]


@pytest.mark.parametrize("kind", ["mean", "last", "cls"])
def test_hidden_states(kind: str, model: Any, runner: Runner, line: Line) -> None:
    with torch.inference_mode():
        states = model.model(torch.tensor([TOKENS])).last_hidden_state[0].numpy()
    first = run(runner, changed(line.chunk(0, 9, samples=False), pooling=kind))
    second = run(runner, line.chunk(0, 3, samples=False), changed(line.chunk(9, 20, samples=False), pooling=kind))
    wanted = {"mean": (states[:9].sum(0), states[9:].sum(0)), "last": (states[8], states[19]), "cls": (states[0], states[9])}
    for actual, expected in zip((first.pooled[0], second.pooled[1]), wanted[kind], strict=True):
        assert actual.dtype == np.float32
        np.testing.assert_allclose(actual, expected, atol=2e-4)
    assert list(second.pooled) == [1] and second.tokens == ()


def plain(runner: Runner, line: Line, params: SamplingParams, count: int) -> list[int]:
    """Decoding, a token at a time."""
    tokens = list(line.tokens)
    for index in range(count):
        start = 0 if index == 0 else len(tokens) - 1
        blocks = line.blocks[: -(-len(tokens) // 16)]
        chunk = Chunk("line", tuple(tokens[start:]), start, blocks, True, params, seed=11, output_index=index)
        tokens.append(run(runner, chunk).tokens[0][0])
    return tokens[len(line.tokens) :]


@pytest.mark.parametrize("params", [GREEDY, SamplingParams(temperature=1.3, top_p=0.9, seed=11)], ids=["greedy", "sampled"])
@pytest.mark.parametrize("right", [0, 1, 3])
def test_drafts_give_what_plain_decoding_gives(right: int, params: SamplingParams, runner: Runner, line: Line) -> None:
    params = msgspec.structs.replace(params, logprobs=2)
    wanted = plain(runner, line, params, 5)
    guesses = [*wanted[1 : 1 + right], *((token + 1) % 97 for token in wanted[1 + right : 4])]
    tokens = (*TOKENS, wanted[0], *guesses)
    chunk = Chunk("line", tokens[20:], 20, line.blocks, True, params, seed=11, output_index=1, drafts=3)
    other = line.chunk(0, 20)
    sampled = run(runner, chunk, changed(other, blocks=(1, 3)))
    assert list(sampled.tokens[0]) == wanted[1 : 2 + right]
    assert len(sampled.tokens[1]) == 1
    assert sampled.logprobs is not None and sampled.logprobs[0] is not None and sampled.logprobs[1] is None
    assert [row[0][0] for row in sampled.logprobs[0].rows()] == list(sampled.tokens[0])


def test_logprobs_of_several_rounds_are_joined(model: Any, runner: Runner, line: Line) -> None:
    params = SamplingParams(temperature=0, logprobs=1)
    first = run(runner, changed(line.chunk(0, 20), params=params))
    chunk = Chunk("line", first.tokens[0], 20, line.blocks, True, params, seed=0, output_index=1, rounds=4)
    sampled = run(runner, chunk)
    assert sampled.logprobs is not None and sampled.logprobs[0] is not None
    assert [row[0][0] for row in sampled.logprobs[0].rows()] == list(sampled.tokens[0])
    wanted = logprobs_of(model, (*TOKENS, *first.tokens[0], *sampled.tokens[0]))
    values = [row[0][1] for row in sampled.logprobs[0].rows()]
    assert values == pytest.approx([float(wanted[20 + i, token]) for i, token in enumerate(sampled.tokens[0])], abs=1e-3)


def test_a_request_with_nothing_to_draw_harms_nobody(runner: Runner, line: Line) -> None:
    nothing = changed(line.chunk(0, 20), mask=np.zeros(4, np.uint32), rounds=3)
    well = changed(line.chunk(0, 20), blocks=(1, 3), rounds=3)
    alone = run(runner, well).tokens[0]
    sampled = run(runner, nothing, well)
    assert set(sampled.tokens[0]) == {-1}
    assert sampled.tokens[1] == alone


def test_a_rest_frees_the_cache_and_keeps_the_weights(runner: Runner, line: Line) -> None:
    wanted = run(runner, line.chunk(0, 20)).tokens
    runner.rest()
    runner.resume()
    assert run(runner, line.chunk(0, 20)).tokens == wanted
