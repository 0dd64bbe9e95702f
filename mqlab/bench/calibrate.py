"""``mqlab calibrate``: this machine as a simulated device, so that ``sim:MODEL@NAME`` runs at the speed of the real engine on it.

The runner of the real engine, sampler and all, gets made-up steps: batches that decode, chunks of prompts, both together (see
``calibrate_steps``). ``step_seconds``, which times every simulated step, is then fitted to their medians; the device gets what is
reached of bandwidth and arithmetic as its own figures, so its shares are 1. Everything that the real runner does between a launch and
its tokens is in a step's time, for a simulated step sleeps for all of it.

What sleeps leaves its processors to others, what computes does not. An engine that computes with every core shares them with its front
and slows both; on the simulated device that never happens. Calibrate and compare with one core less than there are (``--num-threads``)
for figures that agree; with as many threads as cores, the difference between real and simulated is what front and engine take from each
other. Idle OpenMP threads wait at every barrier for the slowest, so with several threads other programs count double.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

import psutil

from mqlab.bench.calibrate_options import CalibrateConfig
from mqlab.bench.calibrate_result import Calibration, rows_of
from mqlab.bench.calibrate_steps import Step, steps_for
from mqlab.bench.calibrate_timing import Times, time_steps
from mqlab.bench.cpu import CpuReport, CpuWatch
from mqlab.bench.output import check_new_folder, check_place, told
from mqlab.config import EngineConfig
from mqlab.errors import ConfigError
from mqlab.models.devices import own_devices
from mqlab.models.echoed import is_echo
from mqlab.models.resolve import load_config
from mqlab.models.simulated import is_simulated
from mqlab.notes import notes_of
from mqlab.record.metadata import environment
from mqlab.types import ModelInfo

_LEAST_STEPS = 12


def main(engine: EngineConfig, config: CalibrateConfig) -> int:
    """``calibrate``, with its progress and result printed and, where asked for, every figure written to a file.

    Raises:
        as ``calibrate``; ConfigError as well for a file that cannot be written.
    """
    told(lambda: calibrate(engine, config), config.output_json, notes_of(engine))
    return 0


def target_file(config: CalibrateConfig) -> Path:
    """Where the device goes; the cache's folder of devices is made where it is missing.

    Raises:
        ConfigError: it cannot be written there.
    """
    if config.output is not None:
        file = Path(config.output).expanduser()
    else:
        file = own_devices() / f"{config.name}.toml"
        check_new_folder(file.parent, "the cache's folder of devices")
    check_place(file, "--output")
    return file


def calibrate(engine: EngineConfig, config: CalibrateConfig) -> Calibration:
    """Load the model here, time its steps, fit a device to them and write that to its file.

    Raises:
        ConfigError: a model that computes nothing, too small a context or KV cache to tell anything by, or a file that cannot be written.
        ModelError: the model cannot be found or read, or is of a kind whose cost is not known.
    """
    if is_echo(engine.model) or is_simulated(engine.model):
        raise ConfigError(f"--model={engine.model!r} computes nothing that could be timed; name a model with weights")
    from mqlab.bench.calibrate_fit import fit_device, timed_of
    from mqlab.model.cost import ModelCost
    from mqlab.model.load import foresee, physical_cores

    file = target_file(config)
    engine = replace(engine, num_threads=engine.num_threads or physical_cores())
    info = foresee(engine)
    cost = ModelCost.of(load_config(Path(info.path)), info.dtype)
    times, cpu = _timed(engine, config, _steps(info, config))
    timed = timed_of(times, info, cost)
    device = fit_device(timed, cost, info.dtype, psutil.virtual_memory().total / 2**30)
    meta = environment()
    told = {"title": f"{meta.get('cpu', 'a CPU')}, {_threads(engine)}", "source": _source(info, engine, meta)}
    device = replace(device, name=file.stem, **told)
    file.write_text(device.as_toml(), encoding="utf-8")
    return Calibration(
        device=device,
        file=str(file),
        rows=rows_of(timed, device, cost),
        workload=config.as_record(),
        engine=asdict(engine),
        notes=notes_of(engine),
        cpu=cpu,
        meta=meta,
    )


def _timed(engine: EngineConfig, config: CalibrateConfig, steps: Sequence[Step]) -> tuple[Times, CpuReport]:
    from mqlab.model.load import build

    runner = build(engine)
    try:
        with CpuWatch({}) as cpu:
            times = time_steps(runner, steps, config.taken_rounds, engine.max_num_batched_tokens, config.seed)
    finally:
        runner.close()
    return times, cpu.report


def _steps(info: ModelInfo, config: CalibrateConfig) -> list[Step]:
    steps = steps_for(info, config.most_tokens)
    if len(steps) < _LEAST_STEPS:
        raise ConfigError(
            f"only {len(steps)} kinds of steps fit {info.num_blocks} KV blocks and {info.max_model_len} tokens, {_LEAST_STEPS} are "
            "needed: raise --num-kv-blocks, --kv-cache-gb, --max-model-len or --context-tokens"
        )
    return steps


def _threads(engine: EngineConfig) -> str:
    return "1 thread" if engine.num_threads == 1 else f"{engine.num_threads} threads"


def _source(info: ModelInfo, engine: EngineConfig, meta: dict[str, object]) -> str:
    return f"`mqlab calibrate` with {info.name} in {info.dtype}, {_threads(engine)}, {meta.get('date', 'no date')}"
