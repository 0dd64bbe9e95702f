"""Requests of random tokens through a real engine core over a tiny model."""

from __future__ import annotations

import random

from checksum import drain

from mqlab.clock import ManualClock
from mqlab.config import EngineConfig
from mqlab.engine.engine_core import EngineCore
from mqlab.model.load import build
from mqlab.types import Request, SamplingParams


def prompts(count: int) -> list[list[int]]:
    """Of 1 to 59 tokens below 97, the same ones every time."""
    rng = random.Random(1)
    return [[rng.randrange(97) for _ in range(rng.randrange(1, 60))] for _ in range(count)]


def serve(engine: EngineConfig, requests: list[tuple[list[int], SamplingParams]]) -> list[tuple[int, ...]]:
    """Their tokens; all at once, and no block is kept."""
    core = EngineCore(build(engine), engine, ManualClock())
    for i, (prompt, params) in enumerate(requests):
        core.add(Request(str(i), prompt, params))
    answers = drain(core).answers
    assert core.calls["stats"]().blocks_used == 0
    core.close()
    return [answers[0, str(i)].tokens for i in range(len(requests))]
