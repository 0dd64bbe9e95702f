"""Both cores behind one name."""

from __future__ import annotations

import pytest
from checksum import VOCAB, build_core, build_runner

from mqlab.engine import echo
from mqlab.engine.core import Core


@pytest.fixture(params=["echo", "engine"])
def any_core(request: pytest.FixtureRequest) -> Core:
    """Either core, with the same limits."""
    if request.param == "echo":
        return echo.build(vocab_size=VOCAB, max_model_len=128, num_blocks=64, block_size=4, max_num_seqs=8)
    return build_core(build_runner())
