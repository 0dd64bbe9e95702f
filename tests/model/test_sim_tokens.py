"""What a simulated model says is a function of the request alone, however it is scheduled; and what was forbidden is not said."""

from __future__ import annotations

from array import array
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from simulated import TEXT, VOCAB, gained, sim_core

from mqlab.model.sim_tokens import SimTokens
from mqlab.plan import Chunk, Plan
from mqlab.types import Pooling, Request, SamplingParams

GREEDY = SamplingParams(temperature=0.0, max_tokens=20, ignore_eos=True)

prompts = st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=40)
wants = st.tuples(prompts, st.sampled_from([None, 0, 1, 2**62 + 5]), st.integers(1, 40))
"""A prompt, a seed or None for greedy, and how many tokens."""

policies = st.fixed_dictionaries(
    {
        "num_blocks": st.sampled_from([24, 40, 512]),
        "max_num_seqs": st.sampled_from([1, 3, 8]),
        "max_num_batched_tokens": st.sampled_from([8, 17, 256]),
        "num_scheduler_steps": st.sampled_from([1, 4]),
        "async_scheduling": st.booleans(),
        "enable_prefix_caching": st.booleans(),
        "num_speculative_tokens": st.sampled_from([0, 0, 3]),
        "scheduling_policy": st.sampled_from(["fcfs", "priority"]),
    }
)


SAME = [0, 0, 0, 0, 0, 1, 0, 0, 0]
DEFAULTS = {"num_blocks": 24, "max_num_seqs": 3, "max_num_batched_tokens": 8}


def request(number: int, want: tuple[list[int], int | None, int]) -> Request:
    prompt, seed, count = want
    params = SamplingParams(temperature=0.0 if seed is None else 1.0, seed=seed, max_tokens=count, ignore_eos=True)
    return Request(f"r{number}", prompt, params, priority=-number)


@settings(max_examples=60, deadline=None)
@given(st.lists(wants, min_size=1, max_size=8), st.booleans(), policies)
@example([([0], None, 1), (SAME, None, 1), (SAME, None, 1)], False, DEFAULTS)  # the third reads what the second fills in the same step
def test_tokens_follow_from_the_request_alone(asked: list[tuple[list[int], int | None, int]], alike: bool, policy: dict[str, Any]) -> None:
    if alike:  # the same beginning, for the prefix cache to find
        asked = [((asked[0][0] * 8)[:32] + prompt, seed, count) for prompt, seed, count in asked]
    requests = [request(number, want) for number, want in enumerate(asked)]
    core = sim_core(**policy)
    for one in requests:
        core.add(one)
    together = gained(core)
    for one in requests:
        alone = sim_core(enable_prefix_caching=False)
        alone.add(one)
        assert together[one.id] == gained(alone)[one.id]


def test_preemption_and_the_cache_were_tried() -> None:
    core = sim_core(num_blocks=30, max_num_seqs=8)
    for number in range(8):
        core.add(request(number, ([*range(32), number], None, 40)))
    gained(core)
    stats = core.calls["stats"]()
    assert stats.preemptions > 0 and stats.prefix_hits > 0


def test_a_greedy_answer_goes_on_with_the_text() -> None:
    core = sim_core()
    core.add(Request("a", [5, 6, 7], GREEDY))
    core.add(Request("b", [5, 6, 8], GREEDY))
    answers = gained(core)
    assert answers["a"] != answers["b"], "it follows from the whole prompt"
    doubled = [*TEXT, *TEXT]
    for tokens in answers.values():
        assert any(doubled[i : i + 20] == tokens for i in range(len(TEXT)))
    core.add(Request("more", [5, 6, 7, *answers["a"][:10]], SamplingParams(temperature=0.0, max_tokens=10)))
    assert gained(core)["more"] == answers["a"][10:]


def test_a_seeded_answer_follows_from_the_seed() -> None:
    core = sim_core()
    for id, prompt, seed in (("a", [1], 7), ("b", [2, 3], 7), ("c", [1], 8)):
        core.add(Request(id, prompt, SamplingParams(temperature=0.7, seed=seed, max_tokens=20)))
    answers = gained(core)
    assert answers["a"] == answers["b"] != answers["c"]


@pytest.mark.parametrize("steps", [1, 4])
def test_what_is_forbidden_is_not_said(steps: int) -> None:
    allowed = (3, 50, 120)
    core = sim_core(num_scheduler_steps=steps)
    core.add(Request("allowed", [9], SamplingParams(temperature=0.0, max_tokens=30, allowed_token_ids=allowed)))
    core.add(
        Request("banned", [9], SamplingParams(temperature=0.0, max_tokens=30, min_tokens=30, stop_token_ids=tuple(range(0, VOCAB, 2))))
    )
    answers = gained(core)
    assert set(answers["allowed"]) <= set(allowed) and len(answers["allowed"]) == 30
    assert all(token % 2 for token in answers["banned"]) and len(answers["banned"]) == 30


def mask_of(ids: list[int]) -> np.ndarray:
    mask = np.zeros(-(-VOCAB // 32), np.uint32)
    for token in ids:
        mask[token // 32] |= np.uint32(1 << token % 32)
    return mask


@pytest.mark.parametrize(
    ("ids", "banned", "said"), [([200], (), 200), ([200, 210], (200,), 210), ([], (), -1), ([200], (200,), -1), ([4, 200], (), 4)]
)
def test_what_is_left_of_a_mask(ids: list[int], banned: tuple[int, ...], said: int) -> None:
    model = SimTokens(array("i", [7, 8, 9]), VOCAB, num_blocks=4, block_size=4, eos=(4,))
    chunk = Chunk("a", (1, 2), 0, (0,), True, GREEDY, 0, banned=banned, mask=mask_of(ids))
    assert model.run(Plan((chunk,))).tokens == ((said,),)


def test_logprobs_prompt_logprobs_and_embeddings_are_made_up() -> None:
    core = sim_core()
    core.add(Request("scored", [1, 2, 3], SamplingParams(max_tokens=2, logprobs=1, prompt_logprobs=2)))
    core.add(Request("plain", [1, 2, 3], SamplingParams(max_tokens=2)))
    for number in range(2):
        core.add(Request(f"pooled{number}", [1, 2, 3 + number] * 30, SamplingParams(), pooling=Pooling()))
    last = {}
    while core.has_work:
        for event in core.finish(core.begin().wait()):
            for delta in event.deltas:
                last.setdefault(delta.id, []).append(delta)
    scored = last["scored"]
    assert [delta.logprobs.rows()[0][0][0] for delta in scored] == [delta.tokens[0] for delta in scored]
    assert [row[0][0] for row in scored[0].prompt_logprobs.rows()] == [2, 3]
    assert all(delta.logprobs is None for delta in last["plain"])
    assert last["pooled0"][0].embedding != last["pooled1"][0].embedding and len(last["pooled0"][0].embedding) == 8 * 4
