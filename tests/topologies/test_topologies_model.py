"""Every topology with the real model: one engine each, and equal tokens from all."""

from __future__ import annotations

from pathlib import Path

import pytest
from contract import CLOSE_S, Rig, Stopwatch
from contract_model import Answers, exercise, model_client
from rigs import RIGS


@pytest.fixture(scope="module")
def reference() -> list[Answers]:
    """The answers of the topologies so far."""
    return []


@pytest.mark.parametrize("rig", [rig for rig in RIGS if rig.codec == "msgpack"], ids=lambda rig: rig.name)
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
