"""``mqlab bench serve``: load on a running server, whichever speaks OpenAI's protocol. The workload of ``vllm bench serve`` (0.33).

Requests have their times before the run begins and are sent at these times however the server fares (open loop), unless
``--max-concurrency`` bounds them. Load comes from processes of its own, whose CPU use is part of the result; where they were the
limit the run is void. Settings without a seed draw a new one, so a second run finds none of its prompts in the server's cache;
what the server did find there is in the result, from its answers' usage or its /metrics page.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import psutil

from mqlab.bars import progress_bar
from mqlab.bench.arrivals import Ramp, arrival_times
from mqlab.bench.bodies import make_body
from mqlab.bench.cpu import CpuWatch
from mqlab.bench.datasets import Sample, load_samples, settled
from mqlab.bench.figures import Timed, measure
from mqlab.bench.load.driver import Load, LoadOutcome, choose_workers, run_load
from mqlab.bench.load_options import LoadConfig
from mqlab.bench.options import DatasetConfig
from mqlab.bench.output import check_new_folder, check_place
from mqlab.bench.reuse import Reuse, server_reuse
from mqlab.bench.serve_result import ServeResult
from mqlab.bench.target import Target, find_target, server_pid
from mqlab.errors import ConfigError
from mqlab.record.metadata import environment

_EOS_COUNTS = ("sharegpt", "sonnet")
"""Datasets of real text, whose answers end where the model ends them, unless told otherwise."""


def main(load: LoadConfig, dataset: DatasetConfig) -> int:
    """Run the benchmark, print the result and, where asked for, write it to a file.

    Returns:
        the exit status: 0, 1 when every request failed, 3 when the run is void.

    Raises:
        ConfigError, ModelError, BenchError.
    """
    folder = result_folder(load)
    result = serve_bench(load, dataset)
    print(result)
    if load.saves:
        print(f"written to {save(result, folder)}")
    return result.exit_code


def serve_bench(
    load: LoadConfig,
    dataset: DatasetConfig,
    url: str | None = None,
    *,
    samples: Sequence[Sample] | None = None,
    watch: Mapping[str, int] | None = None,
) -> ServeResult:
    """Put a server under load and measure what its clients see. Blocks; needs no event loop and disturbs none.

    Args:
        url: the server, instead of the one that ``load`` names.
        samples: what to send, the warm-up last, instead of the dataset's.
        watch: pids of the server's processes by name, for their CPU use; by default who listens at the URL, where it is on this machine.

    Raises:
        ConfigError: the server does not say what it serves, or the dataset cannot be used. ModelError: no such tokenizer.
            BenchError: a load process failed. Requests that fail are in the result.
    """
    dataset = settled(dataset)
    target = find_target(load, url)
    if samples is None:
        samples = load_samples(dataset, target.encoder, load.num_prompts + load.num_warmups)
    samples, warm_up = _apart(samples, load.num_warmups)
    plan = _plan(load, dataset, target, warm_up, samples)
    outcome, cpu, reuse = _run(load, plan, len(samples), _listener(target.url) if watch is None else watch, target)
    return ServeResult(
        load=load,
        dataset=dataset,
        url=target.url,
        model=target.model,
        tokenizer=target.tokenizer_name,
        requests=_figures(load, target, samples, outcome),
        workers=outcome.loads,
        cpu=cpu.report,
        warm_up_errors=outcome.warm_up_errors,
        reuse=reuse,
        meta=environment(),
    )


def result_folder(load: LoadConfig) -> Path:
    """Where the result will go; made where it is to be written, so that a run is not for nothing.

    Raises:
        ConfigError: it cannot be.
    """
    folder = Path(load.result_dir or ".")
    if load.saves:
        check_new_folder(folder, "--result-dir")
        check_place(folder / (load.result_filename or "result"), "--result-filename")
    return folder


def save(result: ServeResult, folder: Path) -> Path:
    """Write the result as JSON, one line per run where it is appended; the file's name is vLLM's."""
    load = result.load
    rate = f"{load.request_rate:g}qps" + (f"-concurrency{load.max_concurrency}" if load.max_concurrency else "")
    label = (load.label or load.backend).replace("/", "-")
    name = f"{label}-{rate}-{Path(result.model).name}-{time.strftime('%Y%m%d-%H%M%S')}.json"
    path = folder / (load.result_filename or name)
    with path.open("a" if load.append_result else "w", encoding="utf-8") as file:
        file.write(json.dumps(result.as_record(load.save_detailed), allow_nan=False, default=str) + "\n")
    return path


def due_times(load: LoadConfig, samples: Sequence[Sample], seed: int) -> np.ndarray:
    """When each request is due, in s after the start, float64 [samples]: a trace's own times unless a rate is given."""
    times = [sample.at_s for sample in samples if sample.at_s is not None]
    ramp = _ramp(load)
    if len(times) == len(samples) and math.isinf(load.request_rate) and ramp is None:
        return np.asarray(times)
    return arrival_times(len(samples), load.request_rate, load.burstiness, seed, ramp=ramp)


def _apart(samples: Sequence[Sample], warm_ups: int) -> tuple[Sequence[Sample], Sequence[Sample]]:
    """What is measured, and the warm-up, which is taken from the end."""
    measured = len(samples) - warm_ups
    if measured < 1:
        raise ConfigError(f"--num-warmups={warm_ups} leaves no request to measure: the dataset has {len(samples)}; lower it")
    return samples[:measured], samples[measured:]


def _listener(url: str) -> dict[str, int]:
    pid = server_pid(url)
    return {} if pid is None else {"server": pid}


def _ramp(load: LoadConfig) -> Ramp | None:
    if load.ramp_up_strategy is None or load.ramp_up_start_rps is None or load.ramp_up_end_rps is None:
        return None
    return Ramp(load.ramp_up_strategy, load.ramp_up_start_rps, load.ramp_up_end_rps)


def _plan(load: LoadConfig, dataset: DatasetConfig, target: Target, warm_up: Sequence[Sample], samples: Sequence[Sample]) -> Load:
    assert dataset.seed is not None
    ignore_eos = dataset.dataset_name not in _EOS_COUNTS if load.ignore_eos is None else load.ignore_eos
    decode = target.tokenizer.decode if target.tokenizer else None
    bodies = [make_body(sample, load, target.model, ignore_eos=ignore_eos, decode=decode) for sample in (*samples, *warm_up)]
    return Load(
        url=target.url + load.path,
        headers=target.headers,
        bodies=bodies[: len(samples)],
        due_s=due_times(load, samples, dataset.seed).tolist(),
        warm_up=bodies[len(samples) :],
        max_concurrency=load.max_concurrency,
        timeout_s=load.request_timeout,
        keep_text=load.save_detailed or target.tokenizer is not None,
    )


def _run(load: LoadConfig, plan: Load, count: int, watch: Mapping[str, int], target: Target) -> tuple[LoadOutcome, CpuWatch, Reuse | None]:
    rate = max(load.request_rate if math.isfinite(load.request_rate) else 0.0, load.ramp_up_end_rps or 0.0)
    workers = load.num_workers or choose_workers(rate or math.inf, load.max_concurrency or count, psutil.cpu_count() or 1)
    cpu = CpuWatch(watch)
    before: Reuse | None = None

    def begin() -> None:
        nonlocal before
        before = server_reuse(target.url, target.headers)
        cpu.start()

    with progress_bar("requests", total=count, unit="req", shown=not load.disable_tqdm) as bar:
        outcome = run_load(plan, workers, on_start=begin, on_progress=lambda ended: bar.update(ended - bar.n))
        bar.update(count - bar.n)
    cpu.stop()
    after = server_reuse(target.url, target.headers) if before else None
    return outcome, cpu, after.since(before) if before and after else None


def _figures(load: LoadConfig, target: Target, samples: Sequence[Sample], outcome: LoadOutcome) -> list[Timed]:
    tokenizer = target.tokenizer
    count = (lambda text: len(tokenizer.encode(text, add_special_tokens=False))) if tokenizer else None
    return [
        measure(
            record,
            outcome.start_ns,
            from_schedule=load.from_schedule,
            prompt_tokens=sample.prompt_tokens,
            count_tokens=count,
        )
        for record, sample in zip(outcome.records, samples, strict=True)
    ]
