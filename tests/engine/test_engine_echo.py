"""EchoCore: the prompt, round and round."""

from __future__ import annotations

import pytest
from checksum import Answer, Inbox, drain

from mqlab.engine.core import step
from mqlab.engine.echo import EchoCore, build
from mqlab.types import Request, SamplingParams
from mqlab.wire.spec import Spec


def answer_of(core: EchoCore, prompt: list[int], **params: object) -> Answer:
    core.add(Request("r", prompt, SamplingParams(**params)))  # pyright: ignore[reportArgumentType]
    return drain(core).answers[0, "r"]


def test_it_repeats_the_prompt() -> None:
    assert answer_of(build(), [5, 6, 7], max_tokens=8) == Answer((5, 6, 7, 5, 6, 7, 5, 6), "length")


@pytest.mark.parametrize("rounds", [2, 3, 8])
@pytest.mark.parametrize("max_tokens", [1, 2, 7, 8, 9])
def test_multi_step_changes_the_bursts_and_nothing_else(rounds: int, max_tokens: int) -> None:
    single = answer_of(build(), [5, 6, 7], max_tokens=max_tokens)
    core = build(num_scheduler_steps=rounds)
    assert answer_of(core, [5, 6, 7], max_tokens=max_tokens) == single
    # One step brings the prompt in and gives one token, the others give as many as there are rounds.
    assert core.calls["stats"]().steps == 1 + -(-(max_tokens - 1) // rounds)


def test_multi_step_drops_what_comes_after_the_end() -> None:
    assert answer_of(build(num_scheduler_steps=8), [5, 6, 7, 2], max_tokens=20) == Answer((5, 6, 7, 2), "stop")


def test_without_max_tokens_it_fills_the_context() -> None:
    assert len(answer_of(build(max_model_len=20), [5, 6, 7], max_tokens=None).tokens) == 17


@pytest.mark.parametrize(
    ("params", "tokens", "finish", "reason"),
    [
        ({}, (5, 2), "stop", None),
        ({"min_tokens": 2}, (5, 2), "stop", None),
        ({"min_tokens": 3}, (5, 2, 7, 5, 2), "stop", None),
        ({"ignore_eos": True, "max_tokens": 4}, (5, 2, 7, 5), "length", None),
        ({"ignore_eos": True, "stop_token_ids": (7, 2)}, (5, 2), "stop", 2),
        ({"stop_token_ids": (5,)}, (5,), "stop", 5),
        ({"max_tokens": 2}, (5, 2), "stop", None),
    ],
)
def test_how_it_ends(params: dict[str, object], tokens: tuple[int, ...], finish: str, reason: int | None) -> None:
    assert answer_of(build(), [5, 2, 7], **params) == Answer(tokens, finish, reason)


def test_ten_thousand_requests_finish_first_come_first_served() -> None:
    core = Spec("mqlab.engine.echo:build", {"max_num_seqs": 1000, "name": "many"}).build()
    for i in range(10_000):
        core.add(Request(f"r{i}", [i % 1000 + 3, 7, 9], SamplingParams(max_tokens=4)))
    inbox = Inbox()
    inbox.take(step(core))
    stats = core.calls["stats"]()
    assert (stats.running, stats.waiting, stats.blocks_used) == (1000, 9000, 1000)
    drain(core, inbox)
    # In order of their first delta.
    assert list(inbox.answers) == [(0, f"r{i}") for i in range(10_000)]
    assert all(answer.tokens == (answer.tokens[0], 7, 9, answer.tokens[0]) for answer in inbox.answers.values())
    assert core.calls["stats"]().finished["length"] == 10_000


def test_gauges_follow_the_tokens() -> None:
    core = build(block_size=4, max_num_seqs=2, num_blocks=10)
    for id in "abc":
        core.add(Request(id, [5, 6, 7], SamplingParams(max_tokens=None)))
    used = []
    for _ in range(3):
        step(core)
        used.append(core.calls["stats"]().blocks_used)
    assert used == [2, 4, 4]
    assert core.calls["stats"]().waiting == 1
    for _ in range(30):
        step(core)
    assert core.calls["stats"]().kv_usage == 1, "it needs no blocks, and counts no more than there are"


def test_the_device_takes_its_time() -> None:
    core = build(device_time=0.02)
    core.add(Request("r", [5], SamplingParams(max_tokens=1)))
    before = core.calls["stats"]().stamp_ns
    step(core)
    assert core.calls["stats"]().stamp_ns - before >= 20_000_000
