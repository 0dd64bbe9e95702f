"""The contract with a real model behind it: the same tokens everywhere, and the core is clean after whatever happened."""

from __future__ import annotations

import asyncio
import pstats
from pathlib import Path

from mqlab.client.base import BaseClient
from mqlab.config import EngineConfig
from mqlab.contract.rig import FAST, Rig, begin, outcome, read, run, settled
from mqlab.errors import InvalidRequest
from mqlab.types import Request, SamplingParams
from mqlab.wire.wiring import Wiring

BLOCKS = 128
Answers = dict[str, tuple[list[int], str | None]]


def model_client(rig: Rig, model: Path) -> BaseClient:
    """A client of a small engine over a real model."""
    config = EngineConfig(model=str(model), num_kv_blocks=BLOCKS, max_model_len=512, max_num_seqs=16, num_threads=1)
    return rig.make(Wiring.of(config, codec=rig.codec, timing=FAST))


def model_requests() -> list[Request]:
    """Greedy and seeded requests, whose tokens depend on themselves alone."""
    prompts = [[504, 3575, 282, 4649], [28, 198, 30, 260, 3575], list(range(1000, 1100)), [42]]
    greedy = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
    seeded = SamplingParams(temperature=0.9, top_p=0.95, top_k=50, seed=7, max_tokens=12, ignore_eos=True)
    return [Request(f"{kind}{i}", prompt, params) for i, prompt in enumerate(prompts) for kind, params in (("g", greedy), ("s", seeded))]


async def answers_of(client: BaseClient) -> Answers:
    """What all of them got, run at once."""
    requests = model_requests()
    return dict(zip([request.id for request in requests], await asyncio.gather(*(run(client, r) for r in requests)), strict=True))


async def exercise(client: BaseClient, profile: Path) -> Answers:
    """Requests, refusals, aborts, a profile and statistics on one engine; returns the answers of ``model_requests``."""
    assert (await client.check()).ok and client.info.num_blocks == BLOCKS
    await client.call("start_profile", str(profile))
    answers = await answers_of(client)
    assert await client.call("stop_profile") == str(profile)
    assert pstats.Stats(str(profile)).total_calls > 0  # type: ignore[attr-defined]
    await _refuse(client)
    await _abort(client)
    stats = await settled(client)
    assert (stats.finished["length"], stats.finished["abort"], stats.blocks_total) == (len(answers), 8, BLOCKS)
    return answers


async def _refuse(client: BaseClient) -> None:
    endless = SamplingParams(max_tokens=None)
    for prompt in ([], [client.info.vocab_size], [3] * 512):
        assert isinstance(await outcome(run(client, Request("bad", prompt, endless))), InvalidRequest)


async def _abort(client: BaseClient) -> None:
    params = SamplingParams(temperature=0, max_tokens=200, ignore_eos=True)
    streams = [await begin(client, Request(f"a{i}", [100 + i, 200], params)) for i in range(8)]
    assert (await client.stats()).blocks_used > 0
    for stream in streams[:4]:
        await stream.aclose()
    await client.abort(f"a{i}" for i in range(4, 8))
    assert [(await outcome(read(stream), timeout=30))[1] for stream in streams[4:]] == ["abort"] * 4
