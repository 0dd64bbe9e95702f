"""``mqlab bench capacity``: how much load a simulated device carries, found in virtual time.

The same requests come at one rate after the other. An engine keeps up while next to nobody waits for a first token when the last request
comes (a backlog that grows never ends by itself); the knee is the highest rate of those tried at which it does. Requests must come for
several times as long as one takes: before that seats are free, and an engine that decodes too slowly looks as if it kept up. No layout,
no socket and no tokeniser is in the numbers: what is asked is what the device allows. End tokens are ignored, so that every request gives
what was asked for, and the seed is 0 unless told otherwise: the same command prints the same numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace

from mqlab.bars import progress_bar
from mqlab.bench.arrivals import arrival_times
from mqlab.bench.capacity_options import CapacityConfig
from mqlab.bench.capacity_result import CapacityResult
from mqlab.bench.datasets import Sample, load_samples, prompt_ids, settled
from mqlab.bench.local import tokenizer_of
from mqlab.bench.options import DatasetConfig
from mqlab.bench.output import told
from mqlab.bench.virtual import VirtualRun, simulate
from mqlab.config import EngineConfig
from mqlab.errors import ConfigError
from mqlab.models.simulated import is_simulated
from mqlab.record.metadata import environment
from mqlab.text.tokenizer import Tokenizer
from mqlab.types import Request, SamplingParams


def main(engine: EngineConfig, config: CapacityConfig, dataset: DatasetConfig) -> int:
    """``capacity``, with its progress and result printed and, where asked for, the result written to a file.

    Raises:
        as ``capacity``.
    """
    told(lambda: capacity(engine, config, dataset), config.output_json)
    return 0


def capacity(engine: EngineConfig, config: CapacityConfig, dataset: DatasetConfig) -> CapacityResult:
    """Run the benchmark.

    Raises:
        ConfigError: the model is not simulated, or the dataset cannot be used. ModelError.
    """
    if not is_simulated(engine.model):
        raise ConfigError(f"--model={engine.model!r} has no virtual time; pass a simulated one, such as sim:llama-3.1-8b@h100")
    dataset = settled(replace(dataset, seed=dataset.seed or 0))
    tokenizer = tokenizer_of(engine.model)
    assert tokenizer is not None, "a simulated model has one"
    requests = _requests(load_samples(dataset, tokenizer, config.num_prompts), tokenizer)
    runs: dict[float, VirtualRun] = {}
    with progress_bar("requests", total=len(requests) * len(config.numbers), unit="req") as bar:
        for number, rate in enumerate(config.numbers):
            times = arrival_times(len(requests), rate, config.burstiness, dataset.seed or 0)
            runs[rate] = simulate(
                engine, requests, list(times), on_step=lambda ended, n=number: bar.update(n * len(requests) + ended - bar.n)
            )
    return CapacityResult(runs=runs, workload=config.as_record(), dataset=dataset.as_record(), engine=asdict(engine), meta=environment())


def _requests(samples: Sequence[Sample], tokenizer: Tokenizer) -> list[Request]:
    return [
        Request(f"r{number}", prompt_ids(one, tokenizer), SamplingParams(temperature=0.0, max_tokens=one.output_tokens, ignore_eos=True))
        for number, one in enumerate(samples)
    ]
