"""A trace of a real run through each layout: what is counted is exact, and the way of every token is found."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from mqlab.config import EngineConfig
from mqlab.record.columns import records
from mqlab.record.trace import Trace
from mqlab.topologies import make_client
from mqlab.types import Request, SamplingParams
from mqlab.wire.wiring import Wiring

TOKENS = 12


async def run(topology: str, folder: Path) -> Trace:
    """One request alone, then four at once. Returns the trace as it was before the end."""
    client = make_client(topology, Wiring.echo(EngineConfig()).recorded(folder))

    async def generate(id: str) -> None:
        async for _ in client.generate(Request(id, list(range(20)), SamplingParams(max_tokens=TOKENS, ignore_eos=True))):
            pass

    await client.start()
    try:
        await generate("alone")
        await asyncio.gather(*(generate(f"r{number}") for number in range(4)))
        return Trace.of(folder)
    finally:
        await client.close()


@pytest.mark.parametrize("topology", ["aio", "mq", "v1"])
async def test_a_run_is_traced_to_the_last_token(topology: str, tmp_path: Path) -> None:
    live = await run(topology, tmp_path)
    trace = Trace.of(tmp_path)
    assert live.tables["steps"].num_rows > 0
    made = trace.to_pandas("steps").query("new_tokens > 0")
    assert made["new_tokens"].sum() == 5 * TOKENS
    finished = trace.latency()
    assert (len(finished), finished["output_tokens"].sum(), set(finished["finish"])) == (5, 5 * TOKENS, {"length"})
    assert (finished["queue_ms"] >= 0).all() and (finished["ttft_ms"] > 0).all()
    lost = {row["edge"]: row["lost"] for row in records(trace.edges()) if row["edge"] in ("input", "output")}
    assert lost == ({} if topology == "aio" else {"input": 0, "output": 0}), "a last beat on another edge may still be under way"
    for token in range(TOKENS):
        way = trace.way("alone", token).set_index("hop")
        assert way.loc["step began", "stamp_ns"] == made["stamp_ns"].iloc[token], "alone, the n-th step made the n-th token"
        assert ("received" in way.index) == (topology != "aio")
    assert trace.why("r2", 3).startswith("Token 3 of request r2 reached the front ")
