"""The settings of the benchmarks; light, for the command line reads them to print its help."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from mqlab.config import check, option


@dataclass(frozen=True, kw_only=True)
class ThroughputConfig:
    """The workload: all requests at once, random prompts. Names are vLLM's."""

    num_prompts: int = option(64, "requests")
    input_len: int = option(128, "tokens per prompt")
    output_len: int = option(64, "new tokens per request; end tokens are ignored")
    topology: str = option("inproc", "layout between client and engine")
    async_engine: bool = option(False, "vLLM's spelling of --topology aio")
    codec: str = option("msgpack", "how a message becomes bytes", choices=("msgpack", "pickle"))
    detokenize: bool = option(False, "turn tokens into text too, as a server would")
    output_json: str | None = option(None, "write the result to this file", metavar="FILE")

    def __post_init__(self) -> None:
        for name in ("num_prompts", "input_len", "output_len"):
            check(getattr(self, name) >= 1, self, name, "must be at least 1")
        agrees = not self.async_engine or self.topology in ("inproc", "aio")
        check(agrees, self, "topology", "cannot be combined with --async-engine, which means --topology aio")

    @property
    def layout(self) -> str:
        """The topology that is meant."""
        return "aio" if self.async_engine else self.topology

    def as_record(self) -> dict[str, Any]:
        """What belongs beside the numbers."""
        names = ("num_prompts", "input_len", "output_len", "codec", "detokenize")
        return {name: getattr(self, name) for name in names} | {"topology": self.layout}
