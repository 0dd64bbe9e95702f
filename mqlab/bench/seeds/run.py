"""``mqlab bench seeds``: the measurements of the four documents, made again on this machine, with a simulated device for the GPU."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path

from mqlab.bench.arms import Arm, checked
from mqlab.bench.compare import compare_arms
from mqlab.bench.compare_options import CompareConfig
from mqlab.bench.output import check_new_folder
from mqlab.bench.seeds.experiment import Experiment, SeedArm
from mqlab.bench.seeds.options import SeedsConfig
from mqlab.bench.seeds.published import EXPERIMENTS
from mqlab.bench.seeds.result import SeedResult, SeedTable
from mqlab.config import EngineConfig
from mqlab.errors import ConfigError, MqlabError

_QUICK_ROUNDS = 3


def main(names: Sequence[str], config: SeedsConfig) -> int:
    """``seeds``, with the table printed.

    Returns:
        0; 1 where an experiment failed; 3 where one is void.

    Raises:
        as ``seeds``.
    """
    table = seeds(names, config)
    print(table)
    if len(table.results) < len(choose(names)):
        return 1
    return 3 if any(result.void for result in table.results) else 0


def seeds(names: Sequence[str], config: SeedsConfig, *, progress: bool = True) -> SeedTable:
    """Run experiments, all of them unless some are named; tell and write each as it is done. One that fails is told and left out.

    Raises:
        ConfigError: an unknown name, or a folder that cannot be made.
    """
    chosen = choose(names)
    folder = Path(config.output_dir)
    check_new_folder(folder, "--output-dir")
    return SeedTable([result for one in chosen if (result := _told(one, config, folder, progress)) is not None])


def choose(names: Sequence[str]) -> list[Experiment]:
    """Experiments by name, or all.

    Raises:
        ConfigError: unknown.
    """
    if unknown := [name for name in names if name not in EXPERIMENTS]:
        raise ConfigError(f"there is no experiment {unknown[0]!r}; there are {', '.join(EXPERIMENTS)}")
    return [EXPERIMENTS[name] for name in names] or list(EXPERIMENTS.values())


def run_experiment(experiment: Experiment, config: SeedsConfig, *, progress: bool = True) -> SeedResult:
    """Run one. Blocks; an interrupt ends every arm.

    Raises:
        ConfigError, ModelError, EngineStartError, BenchError: as ``mqlab.bench.compare.compare``.
    """
    arms, workload = prepare(experiment, quick=config.quick, rounds=config.rounds, model=config.model)
    comparison = compare_arms(arms, workload, progress=progress, probes=experiment.probes)
    return SeedResult(experiment, comparison, quick=config.quick)


def prepare(
    experiment: Experiment, *, quick: bool = False, rounds: int | None = None, model: str | None = None
) -> tuple[list[Arm], CompareConfig]:
    """The arms and the load of an experiment.

    Raises:
        ConfigError: a layout that is not there, an option that it does not have.
    """
    short = experiment.quick if quick else {}
    rounds = rounds or (_QUICK_ROUNDS if quick else experiment.rounds)
    workload = CompareConfig(metric=experiment.metric, rounds=rounds, control=False, **{**experiment.workload, **short})
    return [_arm(one, experiment, model or experiment.model, workload) for one in experiment.arms], workload


def _arm(one: SeedArm, experiment: Experiment, model: str, workload: CompareConfig) -> Arm:
    arm = Arm(
        label=one.label,
        engine=EngineConfig(model=model, **{**experiment.engine, **one.engine}),
        topology=one.topology,
        preset=one.preset,
        codec=one.codec,
        output=one.output,
        detokenize=one.detokenize,
        http=one.http,
        options=one.options,
        concurrency=workload.concurrency,
        rate=workload.rate,
    )
    return checked(arm)


def _told(experiment: Experiment, config: SeedsConfig, folder: Path, progress: bool) -> SeedResult | None:
    """Run one and write it; None where it failed, which is said."""
    print(f"{experiment.name}: {experiment.question}", flush=True)
    begin = time.monotonic()
    try:
        result = run_experiment(experiment, config, progress=progress)
    except MqlabError as error:
        print(f"mqlab: {experiment.name} failed: {error}", file=sys.stderr)
        return None
    kept = [result.save(folder)]
    if config.traces and (trace := result.comparison.trace) is not None:
        kept.append(trace.save(folder / experiment.name, overwrite=True))
    written = ", ".join(map(str, kept))
    print(f"{result.comparison}\n{time.monotonic() - begin:.0f} s, written to {written}\n", flush=True)
    return result
