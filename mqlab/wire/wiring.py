"""The only source of cores, codecs and intervals for a topology. Picklable: it crosses into the engine's process."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from mqlab.config import EngineConfig, Timing
from mqlab.wire.codecs import Codec, make_codec
from mqlab.wire.spec import Spec


@dataclass(frozen=True)
class Wiring:
    """What a topology is wired with.

    Attributes:
        core: builds the core, in the process that owns it.
        wraps: wrappers of the core (probes, faults), each called with the object inside it, first one innermost.
        codec: name of the codec of every socket.
        timing: every interval and limit.
        log_stats_interval: seconds between the engine's own log lines; 0 turns them off.
    """

    core: Spec
    wraps: tuple[Spec, ...] = ()
    codec: str = "msgpack"
    timing: Timing = field(default_factory=Timing)
    log_stats_interval: float = 10.0

    @staticmethod
    def of(config: EngineConfig, *, codec: str = "msgpack", timing: Timing | None = None) -> Wiring:
        """The wiring of a real engine: the scheduling core over the torch runner."""
        runner = Spec("mqlab.model.runner:build", {"config": config})
        core = Spec("mqlab.engine.engine_core:build", {"config": config, "runner": runner})
        return Wiring(core, codec=codec, timing=timing or Timing(), log_stats_interval=config.log_stats_interval)

    @staticmethod
    def echo(config: EngineConfig, *, codec: str = "msgpack", timing: Timing | None = None) -> Wiring:
        """The wiring of a core without a model, which answers at once: what is left is the layout's own cost."""
        core = Spec("mqlab.engine.echo:build", {"max_num_seqs": config.max_num_seqs, "block_size": config.block_size})
        return Wiring(core, codec=codec, timing=timing or Timing(), log_stats_interval=config.log_stats_interval)

    def build_core(self) -> Any:
        """The core with its wrappers folded around it."""
        core = self.core.build()
        for wrap in self.wraps:
            core = wrap.build(core)
        return core

    def build_codec(self) -> Codec:
        """A codec for one thread."""
        return make_codec(self.codec)
