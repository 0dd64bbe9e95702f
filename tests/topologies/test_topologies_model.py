"""Every topology with the real model: one engine each, and equal tokens from all."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from contract_model import Answers, exercise, model_client
from rigs import RIGS

from mqlab.contract.rig import CLOSE_S, Rig, Stopwatch, begin, outcome, read
from mqlab.errors import EngineDeadError
from mqlab.types import Request, SamplingParams


@pytest.fixture(scope="module")
def reference() -> list[Answers]:
    """The answers of the topologies so far."""
    return []


def marked(rig: Rig) -> object:
    """The second codec makes no difference to a model; beside more processes it is tried with what takes long."""
    return pytest.param(rig, id=rig.name, marks=[pytest.mark.full] if rig.helpers and rig.codec != "msgpack" else [])


@pytest.mark.parametrize("rig", [marked(rig) for rig in RIGS])
async def test_contract_with_the_model(rig: Rig, model_folder: Path, reference: list[Answers], tmp_path: Path) -> None:
    client = model_client(rig, model_folder)
    async with client:
        answers = await exercise(client, tmp_path / "engine.pstats")
        watch = Stopwatch()
    assert watch.seconds < CLOSE_S
    assert all(len(tokens) == 12 and finish == "length" for tokens, finish in answers.values())
    assert answers["g0"] != answers["s0"]
    reference.append(answers)
    assert answers == reference[0]


@pytest.mark.parametrize("rig", [rig for rig in RIGS if rig.own_process and rig.codec == "msgpack"], ids=lambda rig: rig.name)
async def test_a_kill_in_the_middle_of_a_real_step_is_seen(rig: Rig, model_folder: Path) -> None:
    endless = SamplingParams(temperature=0, max_tokens=None, ignore_eos=True)
    async with model_client(rig, model_folder) as client:
        stream = await begin(client, Request("endless", [42], endless))
        os.kill(client.info.pid, signal.SIGKILL)
        watch = Stopwatch()
        assert isinstance(await outcome(read(stream)), EngineDeadError)
        assert watch.seconds < 5
        assert not (await client.check()).ok
