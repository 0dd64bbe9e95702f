"""A core that loads other models: each a runner of its own, which notes what becomes of it."""

from __future__ import annotations

from typing import Any

import msgspec
from checksum import ChecksumFlight, ChecksumRunner, build_runner

from mqlab.clock import ManualClock
from mqlab.config import EngineConfig
from mqlab.engine.engine_core import EngineCore
from mqlab.errors import ConfigError, ModelError
from mqlab.plan import Plan
from mqlab.wire.spec import Spec

NOWHERE, TOO_BIG, NO_ROOM = "nowhere", "too-big", "no-room"
"""Models that are not found, that cannot be opened, and whose KV memory cannot be had a second time."""

made: list[KeptRunner] = []
"""All runners, in order; for a test to clear."""


class KeptRunner(ChecksumRunner):
    """Notes whether it is open, rests or is closed; nothing is launched but while it is open, and nothing is in flight when it goes."""

    state = "open"

    def launch(self, plan: Plan) -> ChecksumFlight:
        """See Runner.launch."""
        assert self.state == "open"
        return super().launch(plan)

    def rest(self) -> None:
        """See Runner.rest."""
        assert self.state == "open"
        super().rest()
        self.state = "resting"

    def resume(self) -> None:
        """See Runner.resume."""
        assert self.state == "resting"
        if self.config.model == NO_ROOM:
            raise ConfigError("no room for the KV memory")
        super().resume()
        self.state = "open"

    def close(self) -> None:
        """See Runner.close."""
        assert self.state != "closed" and not self.flights
        super().close()
        self.state = "closed"


def open_runner(config: EngineConfig) -> KeptRunner:
    """What a ``runners`` Spec names."""
    if config.model == TOO_BIG:
        raise MemoryError("as told")
    built = build_runner(num_blocks=config.num_kv_blocks or 64, block_size=config.block_size, max_model_len=config.max_model_len or 128)
    made.append(KeptRunner(msgspec.structs.replace(built.info, name=config.served_model_name or config.model), config))
    return made[-1]


def find(config: EngineConfig) -> None:
    """What a ``finder`` Spec names."""
    if config.model == NOWHERE:
        raise ModelError("no model 'nowhere'")


def build_reloading(**config: Any) -> EngineCore:
    """A core with its first model loaded."""
    made.clear()
    settings = EngineConfig(**{"model": "first", "max_num_seqs": 8, "max_num_batched_tokens": 16, "block_size": 4, **config})
    runners = Spec("reloading:open_runner", {"config": settings})
    return EngineCore(runners.build(), settings, ManualClock(), runners, Spec("reloading:find"))
