"""The engine on the GPU: the same tokens by graphs and kernel by kernel and whatever it does, and those that transformers would give."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mqlab import LLM, SamplingParams

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(400)]

DEVICE: dict[str, Any] = {"device": "cuda"}
PROMPTS = [
    "The capital of France is",
    "1 2 3 4 5 6 7",
    "def fibonacci(n):\n    ",
    "Il était une fois",
    "Photosynthesis is the process by which plants make food from light. " * 12 + "In short,",
    "Once upon a time, there was a",
    "Water boils at",
    "A list of fruits:\n- apple\n-",
]
NEW = 24
GREEDY = SamplingParams(temperature=0.0, max_tokens=NEW, ignore_eos=True)
DRAWN = SamplingParams(temperature=0.9, top_p=0.9, seed=11, max_tokens=NEW, ignore_eos=True)
OF_THE_BEST = {"float32": 1e-3, "bfloat16": 0.5, "float16": 0.1}
"""How far below the largest logit a greedy token's may be, by the dtype that it was found in; transformers computes in float32."""
ENGINE: dict[str, Any] = {
    **DEVICE,
    "max_model_len": 512,
    "num_kv_blocks": 512,
    "max_num_seqs": 8,
    "enable_prefix_caching": False,
    "log_stats_interval": 0.0,
}
# Graphs of the very sizes that batches have here, so that the products are those of the other way, bit by bit.
EXACT: dict[str, Any] = {"dtype": "float32", "cuda_graph_sizes": tuple(range(1, 9))}


def answers(folder: Path, *params: SamplingParams, **engine: Any) -> list[list[list[int]]]:
    """Of one engine in a process of its own: for each of the parameters, those to all prompts at once."""
    with LLM(str(folder), topology="v1", **{**ENGINE, **engine}) as llm:
        return [[list(one.choices[0].tokens) for one in llm.generate(PROMPTS, way, use_tqdm=False)] for way in params]


@pytest.fixture(scope="module")
def by_graphs(model_folder: Path) -> list[list[list[int]]]:
    return answers(model_folder, GREEDY, DRAWN, **EXACT)


@pytest.mark.parametrize(
    "way",
    [
        {"enforce_eager": True},
        {"async_scheduling": True},
        {"num_scheduler_steps": 4},
        {"max_num_batched_tokens": 16},
        {"num_kv_blocks": 40},
    ],
    ids=lambda way: next(iter(way)),
)
def test_every_way_gives_the_tokens_of_the_graphs(model_folder: Path, by_graphs: list[list[list[int]]], way: dict[str, Any]) -> None:
    greedy, drawn = answers(model_folder, GREEDY, DRAWN, **{**EXACT, **way})
    assert greedy == by_graphs[0]
    assert drawn == by_graphs[1]


@pytest.mark.parametrize("backend", ["triton", "sdpa"])
@pytest.mark.parametrize("dtype", OF_THE_BEST)
def test_greedy_tokens_are_among_the_best_of_transformers(model_folder: Path, share_behind: float, dtype: str, backend: str) -> None:
    (found,) = answers(model_folder, GREEDY, dtype=dtype, attention_backend=backend)
    far, behind = distances(model_folder, found)
    assert max(far) <= OF_THE_BEST[dtype]
    assert behind <= share_behind * len(far), "nearly all of them are the best"


def distances(folder: Path, found: list[list[int]]) -> tuple[list[float], int]:
    """By how much each token's logit is below the largest, given those before it; and how many are not the largest."""
    import torch
    import transformers

    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    far: list[float] = []
    for prompt, tokens in zip(PROMPTS, found, strict=True):
        ids = tokenizer(prompt)["input_ids"]
        with torch.inference_mode():
            logits = model(torch.tensor([ids + tokens])).logits[0, len(ids) - 1 : -1]
        chosen = logits.gather(1, torch.tensor(tokens)[:, None]).squeeze(1)
        far += (logits.max(-1).values - chosen).tolist()
    return far, sum(gap > 0 for gap in far)
