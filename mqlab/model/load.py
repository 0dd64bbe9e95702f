"""From a config to a runner that is ready: the model found, read and warmed up."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from mqlab.bars import progress_bar, ticking
from mqlab.config import EngineConfig, Settings, check
from mqlab.errors import ModelError
from mqlab.model.accel.choice import Choice, choose, choose_dtype
from mqlab.model.allocator import keep_freed_memory
from mqlab.model.architecture import Architecture, read_architecture, what_is_missing
from mqlab.model.attention import use_threads
from mqlab.model.decoder import Decoder
from mqlab.model.dummy import DummyWeights
from mqlab.model.forward import Forward
from mqlab.model.info import model_info
from mqlab.model.kv import allocate, check_memory, count_blocks
from mqlab.model.making import ALONE, Group
from mqlab.model.parallel.draws import shared_draws
from mqlab.model.parallel.shares import local, shares_of
from mqlab.model.runner import TorchRunner
from mqlab.model.shape import ModelShape
from mqlab.model.weights import Weights
from mqlab.models.resolve import load_config, resolve
from mqlab.plan import Chunk, Plan
from mqlab.types import ModelInfo, SamplingParams

if TYPE_CHECKING:
    from mqlab.model.accel.runner import DeviceRunner


def build(config: EngineConfig, group: Group = ALONE) -> TorchRunner | DeviceRunner:
    """Resolve, load and warm up a model, or a share of it: then every rank of the group does this at once.

    Raises:
        ConfigError: a limit of the config does not fit the model, or the device.
        ModelError: the model cannot be found, read or served.
    """
    config, choice = _settled(config)
    if choice.on_accel:
        from mqlab.model.accel import load as accel

        return accel.build(config, choice, group)
    return _build_on_cpu(config, group)


def foresee(config: EngineConfig, group: Group = ALONE) -> ModelInfo:
    """What a model, or a share of it, will be; fetched where it must be, but neither read nor given memory. How many blocks a GPU holds is
    an estimate.

    Raises:
        ConfigError: a limit of the config does not fit the model, or the device.
        ModelError: the model cannot be found, or is of no kind that is served.
    """
    config, choice = _settled(config)
    if choice.on_accel:
        from mqlab.model.accel import load as accel

        return accel.foresee(config, choice, group).info
    return _foresee_on_cpu(config, group)[0]


def _settled(config: EngineConfig) -> tuple[EngineConfig, Choice]:
    """Where a model runs; a GPU's engine leaves to the CPU what only transformers can run."""
    _check_quantisable(config)
    choice = choose(config)
    if choice.on_accel:
        from mqlab.model.accel.load import can_run  # what a CPU does without is not imported there

        if not can_run(config):
            config = replace(config, device="cpu")
            choice = choose(config)
    return config, choice


def lacking(config: EngineConfig) -> str:
    """Why no decoder of ours runs a config's model, see ``what_is_missing``.

    Raises:
        ModelError: there is no such model.
    """
    return what_is_missing(load_config(resolve(config.model, Settings.read().cache_dir, load_format=config.load_format)))


def _check_quantisable(config: EngineConfig) -> None:
    """Before a backend is chosen: none that could be suggested would do."""
    if config.quantization != "none":
        missing = lacking(config)
        check(not missing, config, "quantization", f"is not possible for a model that transformers runs ({missing}); leave it out")


def _build_on_cpu(config: EngineConfig, group: Group) -> TorchRunner:
    info, shape, read = _foresee_on_cpu(config, group)
    dtype = choose_dtype(config.dtype)
    keep_freed_memory()
    threads = threads_of(config)
    use_threads(threads)
    memory = partial(allocate, shape, info.num_blocks, info.block_size, dtype)
    # Before the weights, which may take minutes.
    check_memory(shape, info.num_blocks, info.block_size, dtype, ranks_here(config))
    with torch.inference_mode():
        with loading(info.path):
            model = read(info.max_prompt_len + 1)
        runner = TorchRunner(info, model, memory, threads, config.logprobs_mode)
    runner.sampler = shared_draws(runner.sampler, group)
    _warm_up(runner)
    return runner


def _foresee_on_cpu(config: EngineConfig, group: Group) -> tuple[ModelInfo, ModelShape, Callable[[int], Forward]]:
    """What is known, the shape of this rank's share, and how to read its weights for so many positions."""
    folder = resolve(config.model, Settings.read().cache_dir, load_format=config.load_format)
    dtype = choose_dtype(config.dtype)
    shape, read = _find(config, folder, dtype, group)
    name = str(dtype).removeprefix("torch.")
    return model_info(config, folder, shape, name, group.least(count_blocks(config, shape, dtype))), shape, read


def _find(engine: EngineConfig, folder: Path, dtype: torch.dtype, group: Group) -> tuple[ModelShape, Callable[[int], Forward]]:
    """What is known of a model, and how to read its weights for so many positions: by the decoder here, or else by transformers."""
    config, dummy = load_config(folder), engine.load_format == "dummy"
    missing = what_is_missing(config)
    if not missing:
        arch = read_architecture(config)
        shares_of(arch, engine.tensor_parallel_size)  # whether there is one for each rank
        source = DummyWeights(dtype) if dummy else Weights(folder, dtype)
        return local(arch, group), partial(_read_decoder, arch, source, group)
    limit = f"is not possible for a model that transformers runs: {missing}"
    check(engine.tensor_parallel_size == 1, engine, "tensor_parallel_size", limit)
    # Imported where it is needed: transformers takes seconds.
    from mqlab.model.hf import HfModel
    from mqlab.model.hf_shape import hf_architecture

    shape = hf_architecture(folder)
    return shape, lambda max_len: HfModel(shape, folder, dtype, DummyWeights(dtype) if dummy else None)


def _read_decoder(arch: Architecture, source: DummyWeights | Weights, group: Group, max_len: int) -> Decoder:
    decoder = Decoder(arch, source, max_len, group)
    if isinstance(source, Weights):
        source.note_unread()
    return decoder


def _warm_up(runner: TorchRunner) -> None:
    """Run one token through the model and all that the sampler does: compiles the kernels the first time on a machine, loads them from
    numba's cache afterwards. No request must wait for a compiler, for all others would wait with it.
    """
    everything = SamplingParams(top_k=1000, top_p=0.9, min_p=1e-9, presence_penalty=1.0, logit_bias={0: 1.0}, logprobs=1)
    mask = np.full(-(-runner.info.vocab_size // 32), 2**32 - 1, np.uint32)
    chunk = Chunk(
        "warm-up", tokens=(0,), start=0, blocks=(0,), samples=True, params=everything, seed=0, history=(0,), num_prompt=1, mask=mask
    )
    with progress_bar("warming up (compiles kernels the first time)", total=1, unit="step") as bar, ticking(bar):
        runner.run(Plan((chunk,)))
        bar.update()


@contextmanager
def loading(path: str | Path) -> Iterator[None]:
    """Read a model's weights within.

    Raises:
        ModelError: there is no memory for them. torch says so with a RuntimeError; what else one may mean here is told with its text.
    """
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        raise ModelError(f"{path} cannot be loaded: {error}; serve a smaller model, or free memory") from error


def threads_of(config: EngineConfig) -> int:
    """torch threads of each process of an engine: those of the config, or its share of the cores."""
    return config.num_threads or max(1, physical_cores() // ranks_here(config))


def ranks_here(config: EngineConfig) -> int:
    """Processes of this machine that share the model, and the cores."""
    torchrun = Settings.read().torchrun
    return config.tensor_parallel_size if torchrun is None else min(torchrun.local_world_size, config.tensor_parallel_size)


def physical_cores() -> int:
    """Cores that this process may use, hyper-threads not counted."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(allowed, torch.cpu.get_capabilities().get("num_physical_cores", allowed)))
