"""The same greedy tokens, whatever the engine does to get them: the default model in float32 against transformers.

Two texts may part only where transformers itself has two tokens within ``TIE`` of each other. ``make test`` runs a few prompts through
every way; ``make test-full`` all forty, twice as far.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest
import tokenizers
import torch
import transformers
from checksum import Inbox, drain

from mqlab.clock import ManualClock
from mqlab.config import EngineConfig
from mqlab.engine.core import step
from mqlab.engine.engine_core import EngineCore
from mqlab.model.load import build
from mqlab.plan import InFlight, Plan, Runner
from mqlab.types import Request, SamplingParams

TIE = 1e-4
BLOCK = 16
TEXTS = [
    "The capital of France is",
    "1 2 3 4 5 6 7",
    "def fibonacci(n):\n    ",
    "Il était une fois",
    "🙂🙂🙂🙂",
    "Once",
    "the cat sat on the mat, the cat sat on the mat, the cat sat on",
    "Photosynthesis is the process by which plants make food from light. " * 12 + "In short,",
    "Once upon a time, there was a",
    "Water boils at",
    "The three primary colours are",
    "import numpy as np\n\n",
    "Q: What is 12 * 12?\nA:",
    "The quick brown fox",
    "To be, or not to be,",
    "SELECT name FROM users WHERE",
    "Dear Sir or Madam,\n",
    "The meaning of life",
    "In 1969, humans first",
    "A list of fruits:\n- apple\n-",
    "The mitochondria is",
    "ひらがなと漢字",
    "<html>\n<body>\n<h1>",
    "a a a a a a a a",
    "Prime numbers: 2, 3, 5, 7, 11,",
    "Translate to German: good morning ->",
    "0.1 + 0.2 =",
    "Dogs are loyal. Cats are",
]
STORY = (
    "It was the best of times, it was the worst of times, it was the age of wisdom, it was the age of foolishness, it was the epoch of "
    "belief, it was the epoch of incredulity, it was the season of light, it was the season of darkness, it was the spring of hope"
)
# Cuts of one story, in tokens: within a block, at its edge, one token behind it, each with an end of its own.
CUTS = (BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK - 1, 2 * BLOCK, 2 * BLOCK + 1)
ENDS = (" and then", " but")


@dataclass(frozen=True)
class Golden:
    """Prompts, and what transformers makes of them.

    Attributes:
        wanted: the greedy tokens of each prompt, to its end token or ``new`` of them.
        gaps: for each of them, how far the second-best logit lies behind the best, and which token it is.
    """

    new: int
    prompts: list[list[int]]
    wanted: list[list[int]]
    gaps: list[list[tuple[float, int]]]

    def differences(self, answers: list[list[int]]) -> list[str]:
        """Where answers part from what is wanted, ties apart."""
        return [found for index, answer in enumerate(answers) if (found := self._difference(index, answer))]

    def _difference(self, index: int, answer: list[int]) -> str | None:
        wanted = self.wanted[index]
        if answer == wanted:
            return None
        at = next((i for i, (a, b) in enumerate(zip(answer, wanted, strict=False)) if a != b), None)
        if at is None:
            return f"prompt {index}: {len(answer)} tokens, not {len(wanted)}"
        gap, second = self.gaps[index][at]
        if gap < TIE and answer[at] == second:
            return None
        return f"prompt {index}: token {at} is {answer[at]}, not {wanted[at]} (by {gap:.2g})"


@torch.inference_mode()
def golden(folder: Path, prompts: list[list[int]], new: int) -> Golden:
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    wanted, gaps = [], []
    for prompt in prompts:
        tokens = torch.tensor([prompt])
        out = model.generate(
            tokens,
            attention_mask=torch.ones_like(tokens),
            max_new_tokens=new,
            do_sample=False,
            output_scores=True,
            return_dict_in_generate=True,
        )
        best = [scores[0].topk(2) for scores in out.scores]
        wanted.append(out.sequences[0, len(prompt) :].tolist())
        gaps.append([(float(top.values[0] - top.values[1]), int(top.indices[1])) for top in best])
    return Golden(new, prompts, wanted, gaps)


def encoded(folder: Path) -> list[list[int]]:
    tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    story = tokenizer.encode(STORY).ids
    shared = [story[:cut] + tokenizer.encode(end).ids for cut in CUTS for end in ENDS]
    return [tokenizer.encode(text).ids for text in TEXTS] + shared


FEW = [0, 4, 6, 7, 28, 29, 30, 31, 32, 33]


@pytest.fixture(scope="module")
def few(model_folder: Path) -> Golden:
    prompts = encoded(model_folder)
    return golden(model_folder, [prompts[i] for i in FEW], 12)


@pytest.fixture(scope="module")
def forty(model_folder: Path) -> Golden:
    prompts = encoded(model_folder)
    assert len(prompts) == 40
    return golden(model_folder, prompts, 24)


@pytest.fixture(scope="module")
def runner(model_folder: Path) -> Iterator[Runner]:
    runner = build(EngineConfig(model=str(model_folder), dtype="float32", num_threads=2, num_kv_blocks=400, max_logprobs=-1))
    yield runner
    runner.close()


@pytest.fixture(scope="module")
def device_runner(model_folder: Path) -> Iterator[Runner]:
    """The runner of a GPU, with the kernels that need none."""
    fields = {"attention_backend": "torch", "max_model_len": 512, "cuda_graph_sizes": (4, 16, 40)}
    runner = build(EngineConfig(model=str(model_folder), dtype="float32", num_threads=2, num_kv_blocks=400, max_logprobs=-1, **fields))
    yield runner
    runner.close()


class Lent:
    """One runner for many engines, one after the other, each with as much of its cache as it is given."""

    def __init__(self, runner: Runner, num_blocks: int) -> None:
        self._runner = runner
        info = runner.info
        longest = min(info.max_model_len, num_blocks * info.block_size) - 1
        self.info = msgspec.structs.replace(info, num_blocks=num_blocks, max_prompt_len=longest)

    def launch(self, plan: Plan) -> InFlight:
        return self._runner.launch(plan)

    def check(self) -> None:
        pass

    def rest(self) -> None:
        raise AssertionError("nobody puts it to sleep")

    resume = rest

    def close(self) -> None:
        pass


def engine(runner: Runner, *, num_kv_blocks: int = 400, **fields: Any) -> EngineCore:
    config = EngineConfig(**{"max_num_seqs": 64, "max_num_batched_tokens": 1024, "enable_prefix_caching": False, **fields})
    return EngineCore(Lent(runner, num_kv_blocks), config, ManualClock())


def ask(core: EngineCore, prompts: list[list[int]], new: int) -> list[list[int]]:
    """All at once."""
    for i, prompt in enumerate(prompts):
        core.add(Request(str(i), prompt, SamplingParams(temperature=0, max_tokens=new)))
    answers = drain(core).answers
    return [list(answers[0, str(i)].tokens) for i in range(len(prompts))]


def solo(runner: Runner, golden: Golden) -> None:
    core = engine(runner)
    assert golden.differences([ask(core, [prompt], golden.new)[0] for prompt in golden.prompts]) == []


def batched(runner: Runner, golden: Golden, **fields: Any) -> EngineCore:
    core = engine(runner, **fields)
    assert golden.differences(ask(core, golden.prompts, golden.new)) == []
    assert core.calls["stats"]().blocks_used == 0
    return core


def shuffled(runner: Runner, golden: Golden) -> None:
    """In another order, some while others run (C38)."""
    rng = random.Random(5)
    order = rng.sample(range(len(golden.prompts)), len(golden.prompts))
    core, waiting, inbox = engine(runner, max_num_seqs=6), list(order), Inbox()
    while waiting:
        for index in [waiting.pop() for _ in range(min(rng.randrange(1, 4), len(waiting)))]:
            core.add(Request(str(index), golden.prompts[index], SamplingParams(temperature=0, max_tokens=golden.new)))
        for _ in range(rng.randrange(1, 6)):
            if core.has_work:
                inbox.take(step(core))
    answers = drain(core, inbox).answers
    assert golden.differences([list(answers[0, str(i)].tokens) for i in range(len(golden.prompts))]) == []


def cached(runner: Runner, golden: Golden) -> None:
    """Cold, warm (all at once and one by one), and after eviction by a pool that cannot hold all of it."""
    core = engine(runner, enable_prefix_caching=True)
    for _ in range(2):
        assert golden.differences(ask(core, golden.prompts, golden.new)) == []
    assert core.calls["stats"]().prefix_hits > 0
    small = engine(runner, enable_prefix_caching=True, num_kv_blocks=tight(golden), max_num_batched_tokens=64)
    for _ in range(2):
        assert golden.differences(ask(small, golden.prompts, golden.new)) == []
    assert small.calls["stats"]().prefix_hits > 0


def tight(golden: Golden) -> int:
    """Blocks for the longest sequence, and hardly one more."""
    return -(-(max(map(len, golden.prompts)) + golden.new) // BLOCK) + 1


def preempted(runner: Runner, golden: Golden, **fields: Any) -> None:
    core = batched(runner, golden, num_kv_blocks=tight(golden), max_num_seqs=6, **fields)
    assert core.calls["stats"]().preemptions > 0


def speculated(runner: Runner, golden: Golden, **fields: Any) -> None:
    core = batched(runner, golden, num_speculative_tokens=4, prompt_lookup_min=1, **fields)
    stats = core.calls["stats"]()
    assert stats.drafted > stats.accepted > 0


WAYS: dict[str, Callable[[Runner, Golden], object]] = {
    "solo": solo,
    "batched": batched,
    "in any order": shuffled,
    "chunks of 16": lambda runner, golden: batched(runner, golden, max_num_batched_tokens=16, max_num_seqs=16),
    "chunks of 64": lambda runner, golden: batched(runner, golden, max_num_batched_tokens=64),
    "cached": cached,
    "preempted": preempted,
    "preempted, cached": lambda runner, golden: preempted(runner, golden, enable_prefix_caching=True),
    "multi-step 4": lambda runner, golden: batched(runner, golden, num_scheduler_steps=4),
    "multi-step 8": lambda runner, golden: batched(runner, golden, num_scheduler_steps=8, enable_prefix_caching=True),
    "overlapped": lambda runner, golden: batched(runner, golden, async_scheduling=True, enable_prefix_caching=True),
    "speculated": speculated,
    "speculated, overlapped, cached": lambda runner, golden: speculated(runner, golden, async_scheduling=True, enable_prefix_caching=True),
}


@pytest.mark.parametrize("way", WAYS)
def test_greedy_tokens_of_a_few_prompts(way: str, runner: Runner, few: Golden) -> None:
    WAYS[way](runner, few)


@pytest.mark.full
@pytest.mark.timeout(600)
@pytest.mark.parametrize("way", WAYS)
def test_greedy_tokens_of_a_few_prompts_on_a_device(way: str, device_runner: Runner, few: Golden) -> None:
    WAYS[way](device_runner, few)


@pytest.mark.full
@pytest.mark.timeout(600)
@pytest.mark.parametrize("way", WAYS)
def test_greedy_tokens_of_forty_prompts(way: str, runner: Runner, forty: Golden) -> None:
    WAYS[way](runner, forty)
