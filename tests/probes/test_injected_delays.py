"""Injected delays are found by the trace, on a simulated device: wherever a token was held up, ``why`` says so."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest
from simulated import write_device

from mqlab.client.base import BaseClient
from mqlab.config import EngineConfig
from mqlab.record.trace import Trace
from mqlab.topologies import make_client
from mqlab.types import Delta, Request, SamplingParams
from mqlab.wire.spec import Spec
from mqlab.wire.wiring import Wiring

DELAY_S = 0.4
"""Far above a step of 5 ms and whatever else a busy machine does to a token."""

SLOW = 5
TOKENS = 12


def slow_front(client: BaseClient) -> None:
    """Between the arrival of one step's message and its deltas the front does something else."""
    put, steps = client.streams.put, iter(range(TOKENS))

    def late(deltas: Iterable[Delta]) -> None:
        if next(steps) == SLOW:
            threading.Event().wait(DELAY_S)
        put(deltas)

    client.streams.put = late  # type: ignore[method-assign]


@pytest.mark.parametrize(
    ("where", "told"),
    [
        ("begin", "scheduling, in the step that made it"),
        ("wait", "the device, in the step that made it"),
        ("finish", "accounting, in the step that made it"),
        ("front", "the front, between the message's arrival and the delta"),
    ],
)
async def test_a_delay_is_found_where_it_was_injected(where: str, told: str, tmp_path: Path) -> None:
    model = f"sim:pythia-70m@{write_device(tmp_path, step_ms=5.0)}"
    wiring = Wiring.of(EngineConfig(model=model, max_model_len=64, num_kv_blocks=16))
    if where != "front":
        fault = {"hang_step": SLOW + 1, "hang_seconds": DELAY_S, "hang_in": where}
        wiring = replace(wiring, wraps=(Spec("mqlab.probes.faults:FaultyCore", fault),))
    client = make_client("mq", wiring.recorded(tmp_path / "run"))
    if where == "front":
        slow_front(client)
    async with client:
        async for _ in client.generate(Request("a", [3, 4, 5], SamplingParams(max_tokens=TOKENS, ignore_eos=True))):
            pass
    trace = Trace.of(tmp_path / "run")
    assert trace.way("a", SLOW)["ms"].sum() >= 0.9e3 * DELAY_S
    sentence = trace.why("a", SLOW)
    assert told in sentence, sentence
