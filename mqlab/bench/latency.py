"""``mqlab bench latency``: seconds that one fixed batch takes, again and again. The workload of vLLM's benchmark of that name (0.33).

All sequences of a batch are handed over at once and the next batch starts when the last of them has ended. Runs at the level of
tokens, as ``bench throughput`` does. Each batch has prompts of its own, so no cache helps but within one (``n`` sequences
of a prompt share it, and the result says so); vLLM's repeats the same.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from dataclasses import asdict, replace
from itertools import islice

import numpy as np
import uvloop

from mqlab.bars import progress_bar
from mqlab.bench.datasets import load_samples, prompt_ids
from mqlab.bench.latency_result import LatencyResult
from mqlab.bench.local import all_of, check_fits, count_tokens, encoder_of, started, tokenizer_of, watch, wiring_of
from mqlab.bench.options import DatasetConfig, LatencyConfig
from mqlab.bench.output import told
from mqlab.bench.reuse import Reuse
from mqlab.client.contract import EngineClient
from mqlab.config import EngineConfig, Timing
from mqlab.notes import notes_of
from mqlab.record.metadata import environment
from mqlab.types import Request, SamplingParams
from mqlab.wire.wiring import Wiring


def main(engine: EngineConfig, config: LatencyConfig, timing: Timing, *, wiring: Wiring | None = None) -> int:
    """``latency``, with its notes, progress and result printed and, where asked for, the result written to a file.

    Raises:
        as ``latency``.
    """
    told(lambda: latency(engine, config, timing, wiring=wiring), config.output_json, notes_of(engine))
    return 0


def latency(engine: EngineConfig, config: LatencyConfig, timing: Timing, *, wiring: Wiring | None = None) -> LatencyResult:
    """Run the benchmark on an event loop of its own: not from a thread that runs one.

    Args:
        wiring: another core than the one that ``engine`` describes, which is then not looked at.

    Raises:
        ConfigError: the batch does not fit. ModelError, EngineStartError, EngineDeadError, RequestError.
    """
    if config.seed is None:
        config = replace(config, seed=int(np.random.default_rng().integers(2**32)))
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(measure(wiring or _wiring(engine, config, timing), engine, config))


def _wiring(engine: EngineConfig, config: LatencyConfig, timing: Timing) -> Wiring:
    tokenizer_of(engine.model, engine.load_format)  # a model that is missing is found, or fetched, here rather than in the engine
    return wiring_of(engine, config.codec, timing)


async def measure(wiring: Wiring, engine: EngineConfig, config: LatencyConfig) -> LatencyResult:
    """Start an engine, run the batches, close it."""
    async with started(config.topology, wiring) as client:
        check_fits(config.input_len, config.output_len, client.info)
        dataset = DatasetConfig(input_len=config.input_len, output_len=config.output_len, seed=config.seed)
        total = config.batch_size * (config.num_iters_warmup + config.num_iters)
        encoder = encoder_of(client.info)
        prompts = iter([prompt_ids(sample, encoder) for sample in load_samples(dataset, encoder, total)])
        await _run(client, "warm-up", config.num_iters_warmup, prompts, config)
        before = Reuse.of(await client.stats())
        with watch(client) as cpu:
            latencies = await _run(client, "batches", config.num_iters, prompts, config)
        reuse = Reuse.of(await client.stats()).since(before)
    return LatencyResult(
        latencies_s=tuple(latencies),
        workload=config.as_record(),
        engine=asdict(engine),
        notes=notes_of(engine),
        cpu=cpu.report,
        reuse=reuse,
        meta=environment(),
    )


async def _run(client: EngineClient, name: str, count: int, prompts: Iterator[list[int]], config: LatencyConfig) -> list[float]:
    return [await _batch(client, f"{name}-{i}", prompts, config) for i in progress_bar(name, iterable=range(count), unit="batch")]


async def _batch(client: EngineClient, name: str, prompts: Iterator[list[int]], config: LatencyConfig) -> float:
    """Seconds from handing over the batch to the end of its last sequence."""
    params = SamplingParams(temperature=1.0, max_tokens=config.output_len, ignore_eos=True)
    batch = enumerate(islice(prompts, config.batch_size))
    requests = [Request(f"{name}-{i}-{k}", prompt, params) for i, prompt in batch for k in range(config.n)]
    start = time.perf_counter()
    await all_of([count_tokens(client.generate, request) for request in requests])
    return time.perf_counter() - start
