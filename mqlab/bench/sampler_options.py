"""The settings of the sampler's benchmark; light, for the command line reads them to print its help."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from mqlab.config import check, check_types, option


@dataclass(frozen=True, kw_only=True)
class SamplerConfig:
    """What the sampler is given: a batch of one kind, or of all kinds mixed."""

    batch_size: int = option(64, "requests in the batch")
    vocab_size: int = option(49152, "logits of each")
    history_len: int = option(256, "tokens that penalties look back at, half of them prompt")
    num_iters_warmup: int = option(3, "rounds that are not counted")
    num_iters: int = option(50, "rounds that are counted; each takes every batch once")
    num_threads: int = option(0, "threads of the kernels; 0 takes the physical cores")
    model: str | None = option(None, "also time a decode step of this model, for as many sequences")
    seed: int = option(0, "seed of logits and draws")
    output_json: str | None = option(None, "write the result to this file", metavar="FILE")

    def __post_init__(self) -> None:
        check_types(self)
        for name in ("batch_size", "vocab_size", "history_len", "num_iters"):
            check(getattr(self, name) >= 1, self, name, "must be at least 1")
        for name in ("num_iters_warmup", "num_threads", "seed"):
            check(getattr(self, name) >= 0, self, name, "must be at least 0")

    def as_record(self) -> dict[str, Any]:
        """What belongs beside the numbers."""
        return {one.name: getattr(self, one.name) for one in fields(self) if one.name != "output_json"}
