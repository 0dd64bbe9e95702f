"""``mqlab bench throughput``: all requests at once, tokens per second of the whole. The workload of vLLM's benchmark of that name (0.33).

Runs at the level of tokens, through the client of the chosen topology: neither HTTP nor, unless asked for, detokenising is in the
numbers; text of a dataset is tokenised before the clock starts. Random prompts are ids that no run has used before, so no cache
helps; what other datasets' prompts share is told with the result. End tokens are ignored, so every request gives exactly what was asked
for. A warm-up of other prompts comes first and is not counted. ``--model echo`` takes a core without a model, which answers at once. A
trace's arrival times play no part here.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import asdict

import uvloop
from tqdm import tqdm

from mqlab.bars import progress_bar
from mqlab.bench.datasets import Encoder, Sample, load_samples, prompt_ids, settled
from mqlab.bench.local import (
    ECHO,
    Generate,
    all_of,
    check_fits,
    count_tokens,
    encoder_of,
    generating,
    started,
    tokenizer_of,
    watch,
    wiring_of,
)
from mqlab.bench.options import DatasetConfig, ThroughputConfig
from mqlab.bench.output import told
from mqlab.bench.reuse import Reuse
from mqlab.bench.throughput_result import ThroughputResult
from mqlab.config import EngineConfig, Timing
from mqlab.errors import ConfigError
from mqlab.notes import notes_of
from mqlab.record.metadata import environment
from mqlab.types import Request, SamplingParams
from mqlab.wire.wiring import Wiring

_WARM_UP_PROMPTS = 8
_WARM_UP_TOKENS = 8


def main(engine: EngineConfig, workload: ThroughputConfig, dataset: DatasetConfig, timing: Timing, *, wiring: Wiring | None = None) -> int:
    """``throughput``, with its notes, progress and result printed and, where asked for, the result written to a file.

    Raises:
        as ``throughput``.
    """
    told(lambda: throughput(engine, workload, dataset, timing, wiring=wiring), workload.output_json, notes_of(engine))
    return 0


def throughput(
    engine: EngineConfig, workload: ThroughputConfig, dataset: DatasetConfig, timing: Timing, *, wiring: Wiring | None = None
) -> ThroughputResult:
    """Run the benchmark on an event loop of its own: not from a thread that runs one.

    Args:
        wiring: another core than the one that ``engine`` describes, which is then not looked at.

    Raises:
        ConfigError: the dataset cannot be used, or a request does not fit. ModelError, EngineStartError, EngineDeadError, RequestError.
    """
    if workload.detokenize and engine.model == ECHO and wiring is None:
        raise ConfigError("--detokenize needs a model with a tokenizer; --model echo has none")
    dataset = settled(dataset)
    counting = workload.tokenizer or (engine.model if wiring is None else None)
    tokenizer = None if counting is None else tokenizer_of(counting, engine.load_format)
    wiring = wiring or wiring_of(engine, workload.codec, timing)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(measure(wiring, engine, workload, dataset, tokenizer))


async def measure(
    wiring: Wiring, engine: EngineConfig, workload: ThroughputConfig, dataset: DatasetConfig, tokenizer: Encoder | None = None
) -> ThroughputResult:
    """Start an engine, warm it up, run the workload, close it.

    Args:
        tokenizer: counts the dataset's text; by default that of the engine, or bytes where it has none. A dataset's file that cannot
            be used is found before the engine is started only with one given.
    """
    dataset = settled(dataset)
    samples = load_samples(dataset, tokenizer, workload.num_prompts) if tokenizer else None
    async with started(workload.layout, wiring) as client:
        encoder = tokenizer or encoder_of(client.info)
        samples = samples or load_samples(dataset, encoder, workload.num_prompts)
        longest = max(samples, key=lambda one: one.prompt_tokens + one.output_tokens)
        check_fits(longest.prompt_tokens, longest.output_tokens, client.info)
        generate = generating(client, text=workload.detokenize)
        warm_up = _warm_up(samples, encoder, dataset)
        await _run_all(generate, _requests("warm-up", warm_up, encoder))
        requests = _requests("requests", samples, encoder)
        before = Reuse.of(await client.stats())
        with watch(client) as cpu:
            elapsed_s, output_tokens, ends_s = await _run_all(generate, requests)
        reuse = Reuse.of(await client.stats()).since(before)
    return ThroughputResult(
        elapsed_s=elapsed_s,
        prompt_tokens=tuple(len(request.prompt) for request in requests),
        output_tokens=output_tokens,
        ends_s=ends_s,
        warm_up_requests=len(warm_up),
        workload=workload.as_record(),
        dataset=dataset.as_record(),
        engine=asdict(engine),
        notes=notes_of(engine),
        cpu=cpu.report,
        reuse=reuse,
        meta=environment(),
    )


def _warm_up(samples: Sequence[Sample], encoder: Encoder, dataset: DatasetConfig) -> list[Sample]:
    """A few short requests of random prompts, as long as the first of the run."""
    first = samples[:_WARM_UP_PROMPTS]
    tokens = min(_WARM_UP_TOKENS, min(one.output_tokens for one in samples))
    seed = None if dataset.seed is None else dataset.seed + 1
    config = DatasetConfig(dataset_name="random", input_len=max(one.prompt_tokens for one in first), output_len=tokens, seed=seed)
    return load_samples(config, encoder, len(first))


def _requests(name: str, samples: Sequence[Sample], encoder: Encoder) -> list[Request]:
    params = [SamplingParams(temperature=1.0, max_tokens=one.output_tokens, ignore_eos=True) for one in samples]
    return [Request(f"{name}-{i}", prompt_ids(one, encoder), own) for i, (one, own) in enumerate(zip(samples, params, strict=True))]


async def _run_all(generate: Generate, requests: Sequence[Request]) -> tuple[float, tuple[int, ...], tuple[float, ...]]:
    """Run all at once: seconds to the end of the last, and each request's new tokens and end."""
    with progress_bar(requests[0].id.rpartition("-")[0], total=len(requests), unit="req") as bar:
        start = time.perf_counter()
        ended = await all_of([_timed(generate, request, bar) for request in requests])
        elapsed = time.perf_counter() - start
    return elapsed, tuple(count for count, _ in ended), tuple(at - start for _, at in ended)


async def _timed(generate: Generate, request: Request, bar: tqdm) -> tuple[int, float]:
    count = await count_tokens(generate, request)
    bar.update()
    return count, time.perf_counter()
