"""From a config to a runner that is ready: the model found, read and warmed up."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import torch

from mqlab.bars import progress_bar
from mqlab.config import Dtype, EngineConfig, Settings
from mqlab.errors import ModelError
from mqlab.model.allocator import keep_freed_memory
from mqlab.model.architecture import Architecture, read_architecture, what_is_missing
from mqlab.model.attention import use_threads
from mqlab.model.decoder import Decoder
from mqlab.model.dummy import DummyWeights
from mqlab.model.forward import Forward
from mqlab.model.info import model_info
from mqlab.model.kv import allocate, check_memory, count_blocks
from mqlab.model.runner import TorchRunner
from mqlab.model.shape import ModelShape
from mqlab.model.weights import Weights
from mqlab.models.resolve import load_config, resolve
from mqlab.plan import Chunk, Plan
from mqlab.types import ModelInfo, SamplingParams


def build(config: EngineConfig) -> TorchRunner:
    """Resolve, load and warm up a model.

    Raises:
        ConfigError: a limit of the config does not fit the model.
        ModelError: the model cannot be found, read or served.
    """
    info, shape, read = foresee(config)
    dtype = choose_dtype(config.dtype)
    keep_freed_memory()
    threads = config.num_threads or physical_cores()
    use_threads(threads)
    memory = partial(allocate, shape, info.num_blocks, info.block_size, dtype)
    check_memory(shape, info.num_blocks, info.block_size, dtype)  # before the weights, which may take minutes
    with torch.inference_mode():
        try:
            model = read(info.max_prompt_len + 1)
        except (MemoryError, RuntimeError) as error:
            # torch says out of memory with a RuntimeError; what else one may mean here is told with its text.
            raise ModelError(f"{info.path} cannot be loaded: {error}; serve a smaller model, or free memory") from error
        runner = TorchRunner(info, model, memory, threads, config.logprobs_mode)
    _warm_up(runner)
    return runner


def foresee(config: EngineConfig) -> tuple[ModelInfo, ModelShape, Callable[[int], Forward]]:
    """What a model will be, and how to read its weights for so many positions; fetched where it must be, but neither read nor given memory.

    Raises:
        ConfigError: a limit of the config does not fit the model.
        ModelError: the model cannot be found, or is of no kind that is served.
    """
    folder = resolve(config.model, Settings.read().cache_dir, load_format=config.load_format)
    dtype = choose_dtype(config.dtype)
    shape, read = _find(folder, dtype, config.load_format == "dummy")
    name = str(dtype).removeprefix("torch.")
    return model_info(config, folder, shape, name, count_blocks(config, shape, dtype)), shape, read


def _find(folder: Path, dtype: torch.dtype, dummy: bool) -> tuple[ModelShape, Callable[[int], Forward]]:
    """What is known of a model, and how to read its weights for so many positions: by the decoder here, or else by transformers."""
    config = load_config(folder)
    if not what_is_missing(config):
        arch = read_architecture(config)
        source = DummyWeights(dtype) if dummy else Weights(folder, dtype)
        return arch, partial(_read_decoder, arch, source)
    # Imported where it is needed: transformers takes seconds.
    from mqlab.model.hf import HfModel
    from mqlab.model.hf_shape import hf_architecture

    shape = hf_architecture(folder)
    return shape, lambda max_len: HfModel(shape, folder, dtype, DummyWeights(dtype) if dummy else None)


def _read_decoder(arch: Architecture, source: DummyWeights | Weights, max_len: int) -> Decoder:
    decoder = Decoder(arch, source, max_len)
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
    with progress_bar("warming up (compiles kernels the first time)", total=1, unit="step") as bar:
        runner.run(Plan((chunk,)))
        bar.update()


def choose_dtype(asked: Dtype) -> torch.dtype:
    """The run's dtype. On a CPU auto is float32 even where bfloat16 is faster: an answer must not depend on whose machine gave it."""
    return torch.float32 if asked == "auto" else getattr(torch, asked)


def physical_cores() -> int:
    """Cores that this process may use, hyper-threads not counted."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(allowed, torch.cpu.get_capabilities().get("num_physical_cores", allowed)))
