"""C62: penalties follow their formula over a plain forward pass, whatever the engine does with the request. C85: ids without a text."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from engines import Answer, at_rest, difference, front_of, same_logprobs, streamed, whole
from small_model import write_small_model

from mqlab.types import SamplingParams

WORD = 900
PROMPT = [700, *[WORD, 11] * 12, WORD]
NEW = 24
WIDTH = 20
HOW: dict[str, dict[str, float]] = {
    "presence": {"presence_penalty": 2.0},
    "frequency": {"frequency_penalty": -2.0},
    "repetition": {"repetition_penalty": 1.5},
    "all": {"presence_penalty": -1.0, "frequency_penalty": 0.7, "repetition_penalty": 0.8},
}
TIGHT: dict[str, Any] = {"num_kv_blocks": 7, "max_model_len": 64}


def asked(how: str, **more: Any) -> SamplingParams:
    return SamplingParams(temperature=0, max_tokens=NEW, ignore_eos=True, logprobs=WIDTH, **HOW.get(how, {}), **more)


def penalised(logits: torch.Tensor, output: list[int], params: SamplingParams) -> torch.Tensor:
    """vLLM's formula: repetition over prompt and output, frequency and presence over the output alone."""
    logits = logits.clone()
    seen = torch.tensor([*{*PROMPT, *output}])
    values = logits[seen]
    logits[seen] = torch.where(values > 0, values / params.repetition_penalty, values * params.repetition_penalty)
    for token, count in Counter(output).items():
        logits[token] -= params.frequency_penalty * count + params.presence_penalty
    return logits


@pytest.fixture(scope="module")
def model(small: Path) -> Any:
    return transformers.AutoModelForCausalLM.from_pretrained(small, dtype=torch.float32).eval()


@torch.inference_mode()
def check_by_formula(model: Any, answer: Answer, params: SamplingParams) -> None:
    (choice,) = answer.choices
    rows = model(torch.tensor([[*PROMPT, *choice.tokens]])).logits[0, len(PROMPT) - 1 : -1]
    assert choice.logprobs is not None and len(choice.logprobs) == NEW
    for at, (row, told) in enumerate(zip(rows, choice.logprobs, strict=True)):
        wanted = penalised(row, list(choice.tokens[:at]), params).log_softmax(-1)
        assert told.logprob == pytest.approx(float(wanted.max()), abs=1e-3), at
        assert [one.logprob for one in told.top] == pytest.approx(wanted.topk(WIDTH).values.tolist(), abs=1e-3), at
        assert [one.logprob for one in told.top] == pytest.approx([float(wanted[one.token]) for one in told.top], abs=1e-3), at


@pytest.mark.parametrize("config", [{}, {"num_scheduler_steps": 4, "async_scheduling": True}, {"num_speculative_tokens": 3}], ids=str)
async def test_they_follow_their_formula_cold_on_a_hit_and_preempted(config: dict[str, Any], small: Path, model: Any) -> None:
    async with front_of(small, logprobs_mode="processed_logprobs", **TIGHT, **config) as front:
        cold = {how: await whole(front, PROMPT, asked(how)) for how in HOW}
        hits = [await streamed(front, PROMPT, asked(how)) for how in HOW]
        crowd = await asyncio.gather(*(streamed(front, PROMPT, asked(how), salt=how) for how in HOW))
        stats = await front.client.stats()
    for how, hit, crowded in zip(HOW, hits, crowd, strict=True):
        check_by_formula(model, cold[how], asked(how))
        assert not difference(hit, cold[how])
        assert not difference(crowded, cold[how])
    assert stats.prefix_hits > 0 and stats.preemptions > 0
    assert at_rest(stats)


async def test_the_prompt_counts_for_repetition_alone(small: Path) -> None:
    """At the first step nothing has been put out yet."""
    few = {"allowed_token_ids": (*PROMPT[:3], 500, 501, 502, 503)}
    async with front_of(small, logprobs_mode="processed_logprobs", **TIGHT) as front:
        plain, *others = [(await whole(front, PROMPT, asked(how, **few))).choices[0] for how in ("none", *HOW)]
    assert plain.logprobs is not None
    firsts = [choice.logprobs[:1] for choice in others if choice.logprobs is not None]
    assert [same_logprobs(first, plain.logprobs[:1]) for first in firsts] == [True, True, False, False]
    assert plain.tokens not in [choice.tokens for choice in others[:2]]
    repeats = [max(Counter(choice.tokens).values()) for choice in others]
    assert repeats[0] < repeats[1], "-2 asks for repetition, 2 avoids it"


async def test_the_models_own_logprobs_do_not_know_of_them(small: Path, model: Any) -> None:
    async with front_of(small, **TIGHT) as front:
        (choice,) = (await whole(front, PROMPT, asked("all"))).choices
    with torch.inference_mode():
        rows = model(torch.tensor([[*PROMPT, *choice.tokens]])).logits[0, len(PROMPT) - 1 : -1].log_softmax(-1)
    assert choice.logprobs is not None
    assert [one.logprob for one in choice.logprobs] == pytest.approx(
        [float(rows[i, token]) for i, token in enumerate(choice.tokens)], abs=1e-3
    )


# --- C85

VOCAB, MORE = 49152, 64


@pytest.mark.parametrize("topology", ["inproc", "aio"])
async def test_ids_beyond_the_tokenizer_have_no_text_and_harm_nothing(topology: str, tmp_path: Path, model_folder: Path) -> None:
    """A model with 64 rows more than its tokenizer has entries."""
    padded = write_small_model(tmp_path / "padded", model_folder, VOCAB + MORE)
    forced = [VOCAB, VOCAB + MORE - 1, 1, 2]
    async with front_of(padded, topology, num_kv_blocks=64, max_model_len=64, num_scheduler_steps=4) as front:
        plain = SamplingParams(temperature=0, max_tokens=20, ignore_eos=True)
        alone = await whole(front, [5, 6], plain)
        for token in forced:
            for skip in (True, False):
                params = SamplingParams(max_tokens=6, ignore_eos=True, logit_bias={token: 100.0}, logprobs=2, skip_special_tokens=skip)
                one, other, beside = await asyncio.gather(
                    whole(front, [5, 6], params), streamed(front, [5, 6], params), streamed(front, [5, 6], plain)
                )
                assert not difference(other, one)
                assert not difference(beside, alone)
                (choice,) = one.choices
                name = {1: "<|im_start|>", 2: "<|im_end|>"}.get(token, "")
                assert (choice.tokens, choice.finish) == ((token,) * 6, "length")
                assert choice.text == ("" if skip else name * 6)
                assert choice.logprobs is not None and all(told.token == token for told in choice.logprobs)
        among = await whole(front, [VOCAB + 3, 5, VOCAB + 9, 6], SamplingParams(temperature=0, max_tokens=4, prompt_logprobs=1))
        assert among.prompt_logprobs is not None and len(among.prompt_logprobs) == 4
