"""The settings of a comparison; light, for the command line reads them to print its help."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from mqlab.config import check, check_types, option

Detokenize = Literal["none", "front", "engine", "process"]
Lengths = Literal["fixed", "sharegpt", "sonnet"]
Metric = Literal["output_tokens_per_s", "steady_tokens_per_s", "ttft_ms", "tpot_ms", "cpu_us_per_token", "memory_mb"]

METRICS: dict[str, str] = {
    "output_tokens_per_s": "new tokens/s",
    "steady_tokens_per_s": "new tokens/s in the steady window",
    "ttft_ms": "median time to first token, ms",
    "tpot_ms": "median time per output token, ms",
    "cpu_us_per_token": "CPU of all processes per new token, µs",
    "memory_mb": "memory of all processes (PSS), MB",
}
"""What can be compared, in words. More is better for the first two, less for the others."""

MEAN_LENGTHS: dict[Lengths, tuple[int, int]] = {"fixed": (64, 32), "sharegpt": (225, 194), "sonnet": (550, 150)}
"""Tokens of a prompt and of an answer, on average, unless they are given."""

SYNC = "sync"
"""A layout of the bench's own: no client and no event loop, the core stepped in a plain loop."""

AXES = ("topology", "preset", "codec", "output", "detokenize", "concurrency", "cores", "http", "rate")
"""Settings of an arm that are not the engine's; --vary also takes any engine setting and any option of the layout."""


@dataclass(frozen=True, kw_only=True)
class CompareConfig:
    """The comparison: arms that differ in one setting, run in turns. The first arm is the baseline."""

    topologies: str | None = option(
        None,
        f"layouts to compare, separated by commas; all of them when nothing else varies; {SYNC} steps the core itself",
        metavar="A,B",
        usual=True,
    )
    vary: str | None = option(
        None,
        f"another setting to vary: {', '.join(AXES)}, any engine setting or option of the layout; several with ';' and --grid",
        metavar="NAME=A,B",
        usual=True,
    )
    grid: bool = option(False, "allow more than one setting to vary, in every combination")
    topology: str = option("v1", "layout of all arms, when another setting varies", usual=True)
    preset: str = option("best", "of the layout: best, or historical as the system that it reproduces had it")
    codec: Literal["msgpack", "pickle"] = option("msgpack", "how a message becomes bytes", choices=("msgpack", "pickle"))
    output: Literal["delta", "cumulative"] = option(
        "delta", "what a message carries: new tokens only, or all so far", choices=("delta", "cumulative")
    )
    detokenize: Detokenize = option(
        "none",
        "who turns tokens into text; process is for layouts that have one for it",
        choices=("none", "front", "engine", "process"),
        usual=True,
    )
    http: bool = option(False, "the front serves its OpenAI route, and the load comes from a process of its own", usual=True)
    concurrency: int = option(0, "requests at once; 0 hands over all of them at once", usual=True)
    cores: str | None = option(None, "CPUs of front and engine, as FRONT/ENGINE, for example 0/1 or 0-3/4-7", metavar="F/E")
    num_prompts: int = option(64, "requests of a run", usual=True)
    rate: float = option(0.0, "requests a second, as a Poisson process; 0 hands them over at once", usual=True)
    lengths: Lengths = option("fixed", "prompts and answers of one length, or spread as in a data set", choices=tuple(MEAN_LENGTHS))
    input_len: int | None = option(None, "tokens per prompt, on average; 64, sharegpt 225, sonnet 550 unless given", usual=True)
    prefix_len: int = option(0, "tokens of each prompt with which all prompts of a round begin; 0 lets them share nothing")
    output_len: int | None = option(
        None, "new tokens per request, on average; 32, sharegpt 194, sonnet 150 unless given; end tokens are ignored", usual=True
    )
    rounds: int = option(5, "runs of each arm, in turns", usual=True)
    metric: Metric = option("output_tokens_per_s", "what the verdict is about", choices=tuple(METRICS), usual=True)
    confidence: float = option(0.95, "of the intervals")
    alone: bool = option(False, "start an arm anew for each of its runs, while no other is there: memory is then its own")
    control: bool = option(True, "run the baseline without probes as well, to tell what they cost")
    output_json: str | None = option(None, "write the result to this file", metavar="FILE", usual=True)

    def __post_init__(self) -> None:
        check_types(self)
        for name in ("num_prompts", "input_len", "output_len"):
            value = getattr(self, name)
            check(value is None or value >= 1, self, name, "must be at least 1")
        check(0 <= self.prefix_len < self.mean_lengths[0], self, "prefix_len", "must be at least 0 and below --input-len")
        check(self.rate >= 0, self, "rate", "must be at least 0; 0 hands over all requests at once")
        check(self.rounds >= 3, self, "rounds", "must be at least 3: fewer runs have no interval")
        check(self.concurrency >= 0, self, "concurrency", "must be at least 0; 0 hands over all requests at once")
        check(0.5 <= self.confidence < 1, self, "confidence", "must be in [0.5, 1)")

    @property
    def mean_lengths(self) -> tuple[int, int]:
        """Tokens of a prompt and of an answer, on average, as they take effect."""
        input_len, output_len = MEAN_LENGTHS[self.lengths]
        return self.input_len or input_len, self.output_len or output_len
