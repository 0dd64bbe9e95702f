"""The settings of the benchmarks; light, for the command line reads them to print its help."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Literal

from mqlab.config import check, check_types, option

DatasetName = Literal["random", "corpus", "prefix", "sharegpt", "sonnet", "trace"]

_USES: dict[str, tuple[str, ...]] = {
    "random": ("input_len", "output_len", "range_ratio"),
    "corpus": ("dataset_path", "input_len", "output_len"),
    "prefix": ("input_len", "output_len", "range_ratio", "prefix_len", "num_prefixes"),
    "sharegpt": ("dataset_path", "output_len"),
    "sonnet": ("dataset_path", "input_len", "output_len", "prefix_len"),
    "trace": (
        "dataset_path",
        "trace_start",
        "trace_seconds",
        "trace_stretch",
        "trace_rate",
        "trace_block_size",
        "trace_max_input_len",
        "trace_max_output_len",
    ),
}
"""The settings that mean something to a dataset; ``seed`` and ``oversample`` do to all."""

_FROM_A_FILE = ("sharegpt", "sonnet", "trace")
_EVERYWHERE = ("dataset_name", "seed", "oversample")


@dataclass(frozen=True, kw_only=True)
class DatasetConfig:
    """Where prompts come from. Names are vLLM's; what a dataset has no use for is refused.

    ``random``: ids that no run has used before, unless ``seed`` is given. ``corpus``: passages of English, from the
    documentation inside every CPython or from a text file. ``prefix``: random, in groups that share how they begin.
    ``sharegpt``, ``sonnet``, ``trace`` (Azure, BurstGPT, Mooncake): files.
    """

    dataset_name: DatasetName | None = option(
        None, "kind of prompts; by default what the file at --dataset-path is, or random", choices=tuple(_USES), usual=True
    )
    dataset_path: str | None = option(
        None,
        "ShareGPT JSON, sonnet text, a trace (Azure CSV, BurstGPT CSV, Mooncake JSONL), or corpus text",
        metavar="FILE",
        aliases=("--dataset",),
        usual=True,
    )
    input_len: int | None = option(
        None, "tokens per prompt: 128, sonnet 550 unless given", aliases=("--random-input-len", "--sonnet-input-len"), usual=True
    )
    output_len: int | None = option(
        None,
        "new tokens per request: 64, sonnet 150, sharegpt and trace as recorded unless given",
        aliases=("--random-output-len", "--sonnet-output-len", "--sharegpt-output-len"),
        usual=True,
    )
    range_ratio: float = option(0.0, "random, prefix: lengths vary by this share both ways, in [0, 1)", aliases=("--random-range-ratio",))
    prefix_len: int | None = option(
        None, "tokens that prompts share: sonnet 200, prefix half of the input unless given", aliases=("--sonnet-prefix-len",), usual=True
    )
    num_prefixes: int | None = option(None, "prefix: groups of prompts that share how they begin; 10 unless given")
    oversample: bool = option(True, "sharegpt: repeat prompts when the file has too few, as vLLM does")
    trace_start: float = option(0.0, "trace: begin this many seconds into it", metavar="S")
    trace_seconds: float | None = option(None, "trace: take this many of its seconds", metavar="S")
    trace_stretch: float = option(1.0, "trace: times are multiplied by this; 0.5 is twice as fast")
    trace_rate: float | None = option(None, "trace: stretch it to this many requests a second")
    trace_block_size: int = option(512, "trace: tokens that one of its hash ids stands for; Mooncake 512, Qwen-Bailian 16")
    trace_max_input_len: int | None = option(None, "trace: longer prompts are cut to this")
    trace_max_output_len: int | None = option(None, "trace: longer outputs are cut to this")
    seed: int | None = option(None, "seed of prompts and draws; a fresh one every run unless given, reported with the result", usual=True)

    def __post_init__(self) -> None:
        check_types(self)
        counts = ("input_len", "output_len", "prefix_len", "num_prefixes", "trace_max_input_len", "trace_max_output_len")
        for name in (*counts, "trace_block_size"):
            value = getattr(self, name)
            check(value is None or value >= 1, self, name, "must be at least 1")
        check(0 <= self.range_ratio < 1, self, "range_ratio", "must be in [0, 1)")
        check(self.seed is None or self.seed >= 0, self, "seed", "must be at least 0")
        self._check_trace()
        if self.dataset_name is not None:
            self._check_uses(self.dataset_name)

    def _check_trace(self) -> None:
        check(self.trace_start >= 0, self, "trace_start", "must be at least 0")
        check(self.trace_seconds is None or self.trace_seconds > 0, self, "trace_seconds", "must be above 0")
        check(self.trace_stretch > 0, self, "trace_stretch", "must be above 0")
        check(self.trace_rate is None or self.trace_rate > 0, self, "trace_rate", "must be above 0")
        check(self.trace_rate is None or self.trace_stretch == 1, self, "trace_rate", "cannot be combined with --trace-stretch")

    def _check_uses(self, dataset: str) -> None:
        for one in fields(self):
            given = getattr(self, one.name) != one.default
            useful = one.name in _EVERYWHERE or one.name in _USES[dataset]
            takers = ", ".join(name for name, uses in _USES.items() if one.name in uses)
            check(useful or not given, self, one.name, f"means nothing to the {dataset} dataset; it is for {takers}")
        needs = dataset in _FROM_A_FILE
        check(not needs or self.dataset_path is not None, self, "dataset_name", "is read from a file: name it with --dataset-path")

    def as_record(self) -> dict[str, Any]:
        """What was chosen, without what was left alone."""
        return {one.name: value for one in fields(self) if (value := getattr(self, one.name)) != one.default}


@dataclass(frozen=True, kw_only=True)
class ThroughputConfig:
    """The workload: all requests at once. Names are vLLM's."""

    num_prompts: int = option(64, "requests")
    topology: str = option("inproc", "layout between client and engine: a name, or a .py file of your own")
    async_engine: bool = option(False, "vLLM's spelling of --topology aio")
    codec: str = option("msgpack", "how a message becomes bytes", choices=("msgpack", "pickle"))
    tokenizer: str | None = option(None, "model whose tokenizer counts a dataset's text; the served model's by default")
    detokenize: bool = option(False, "turn tokens into text too, as a server would")
    output_json: str | None = option(None, "write the result to this file", metavar="FILE")

    def __post_init__(self) -> None:
        check_types(self)
        check(self.num_prompts >= 1, self, "num_prompts", "must be at least 1")
        agrees = not self.async_engine or self.topology in ("inproc", "aio")
        check(agrees, self, "topology", "cannot be combined with --async-engine, which means --topology aio")

    @property
    def layout(self) -> str:
        """The topology that is meant."""
        return "aio" if self.async_engine else self.topology

    def as_record(self) -> dict[str, Any]:
        """What belongs beside the numbers."""
        names = ("num_prompts", "codec", "detokenize", "tokenizer")
        return {name: getattr(self, name) for name in names} | {"topology": self.layout}


@dataclass(frozen=True, kw_only=True)
class LatencyConfig:
    """A fixed batch, again and again. Names and defaults are vLLM's, but for the number of iterations."""

    batch_size: int = option(8, "prompts in the batch")
    input_len: int = option(32, "tokens per prompt")
    output_len: int = option(128, "new tokens per sequence; end tokens are ignored")
    n: int = option(1, "sequences per prompt")
    num_iters_warmup: int = option(2, "batches that are not counted")
    num_iters: int = option(10, "batches that are counted")
    seed: int | None = option(None, "seed of the prompts; a fresh one every run unless given, reported with the result")
    topology: str = option("inproc", "layout between client and engine: a name, or a .py file of your own")
    codec: str = option("msgpack", "how a message becomes bytes", choices=("msgpack", "pickle"))
    output_json: str | None = option(None, "write the result to this file", metavar="FILE")

    def __post_init__(self) -> None:
        check_types(self)
        for name in ("batch_size", "input_len", "output_len", "n", "num_iters"):
            check(getattr(self, name) >= 1, self, name, "must be at least 1")
        check(self.num_iters_warmup >= 0, self, "num_iters_warmup", "must be at least 0")
        check(self.seed is None or self.seed >= 0, self, "seed", "must be at least 0")

    def as_record(self) -> dict[str, Any]:
        """What belongs beside the numbers."""
        return {one.name: getattr(self, one.name) for one in fields(self) if one.name != "output_json"}
