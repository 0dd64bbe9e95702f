"""Both cores behind one name."""

from __future__ import annotations

import pytest
from checksum import VOCAB, build_core, build_runner

from mqlab.engine import echo
from mqlab.engine.core import Core


@pytest.fixture(params=["echo", "engine", "echo, async", "engine, async"])
def any_core(request: pytest.FixtureRequest) -> Core:
    """Either core, running ahead or not, with the same limits."""
    ahead = request.param.endswith("async")
    if request.param.startswith("echo"):
        return echo.build(vocab_size=VOCAB, max_model_len=128, num_blocks=64, block_size=4, max_num_seqs=8, async_scheduling=ahead)
    return build_core(build_runner(async_scheduling=ahead))
