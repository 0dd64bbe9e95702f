"""The runner that computes: a torch decoder over a paged KV cache."""

from __future__ import annotations

import os
from pathlib import Path

import torch

from mqlab.bars import progress_bar
from mqlab.config import Dtype, EngineConfig, Settings
from mqlab.errors import ModelError
from mqlab.model.architecture import Architecture, read_architecture
from mqlab.model.attention import use_threads
from mqlab.model.batch import BatchTensors
from mqlab.model.decoder import Decoder
from mqlab.model.info import model_info
from mqlab.model.kv import LayerCache, allocate, count_blocks
from mqlab.model.sampler import sample
from mqlab.model.weights import Weights
from mqlab.models.resolve import load_config, resolve
from mqlab.plan import Chunk, InFlight, Plan, SampledTokens
from mqlab.types import ModelInfo, SamplingParams


class TorchRunner:
    """A decoder, its KV cache, and the sampler.

    Args:
        info: what clients must know.
        decoder: weights and forward pass.
        cache: one LayerCache a layer.
        threads: torch and kernel threads of a step.

    Attributes:
        sampler: makes tokens of logits; a probe may put a wrapper in its place between steps.
    """

    def __init__(self, info: ModelInfo, decoder: Decoder, cache: list[LayerCache], threads: int) -> None:
        self.info = info
        self._decoder: Decoder | None = decoder
        self._cache = cache
        self._threads = threads
        self._sampled = SampledTokens(())
        self.sampler = sample

    def launch(self, plan: Plan) -> InFlight:
        """Start one step. The device is this CPU, so the work is done inside ``wait``."""
        return _Flight(self, plan)

    @torch.inference_mode()
    def run(self, plan: Plan) -> SampledTokens:
        """Do one step, after those that were launched before it: one round for every chunk, and more for those that decode on.

        Raises:
            RuntimeError: closed, or logits that are not finite.
        """
        if self._decoder is None:
            raise RuntimeError("the runner is closed")
        use_threads(self._threads)
        plan = plan.resolved(self._sampled)
        sampling = plan.sampling
        gains = [[token] for token in self._round(self._decoder, plan)]
        for number in range(1, plan.rounds):
            on = [(chunk, gained) for chunk, gained in zip(sampling, gains, strict=True) if chunk.rounds > number]
            tokens = self._round(self._decoder, Plan(tuple(chunk.after(gained) for chunk, gained in on)))
            for (_, gained), token in zip(on, tokens, strict=True):
                gained.append(token)
        self._sampled = SampledTokens(tuple(map(tuple, gains)), plan.rounds)
        return self._sampled

    def _round(self, decoder: Decoder, plan: Plan) -> tuple[int, ...]:
        batch = BatchTensors.of(plan, self.info.block_size)
        return self.sampler(decoder.logits(batch, self._cache), plan.sampling)

    def close(self) -> None:
        """Free weights and KV memory."""
        self._decoder = None
        self._cache = []


class _Flight:
    """A step that is computed when waited for."""

    def __init__(self, runner: TorchRunner, plan: Plan) -> None:
        self._runner = runner
        self._plan = plan

    def wait(self) -> SampledTokens:
        """Compute and sample."""
        return self._runner.run(self._plan)


def build(config: EngineConfig) -> TorchRunner:
    """Resolve, load and warm up a model.

    Raises:
        ConfigError: a limit of the config does not fit the model.
        ModelError: the model cannot be found, read or served.
    """
    folder = resolve(config.model, Settings.read().cache_dir)
    arch = read_architecture(load_config(folder))
    dtype = choose_dtype(config.dtype)
    info = model_info(config, folder, arch, dtype, count_blocks(config, arch, dtype))
    threads = config.num_threads or physical_cores()
    use_threads(threads)
    runner = _load(info, folder, arch, dtype, threads)
    _warm_up(runner)
    return runner


def _load(info: ModelInfo, folder: Path, arch: Architecture, dtype: torch.dtype, threads: int) -> TorchRunner:
    with torch.inference_mode():
        cache = allocate(arch, info.num_blocks, info.block_size, dtype)
        try:
            decoder = Decoder(arch, Weights(folder, dtype), max_len=info.max_prompt_len + 1)
        except (MemoryError, RuntimeError) as error:
            # torch says out of memory with a RuntimeError; what else one may mean here is told with its text.
            raise ModelError(f"{folder} cannot be loaded: {error}; serve a smaller model, or free memory") from error
        return TorchRunner(info, decoder, cache, threads)


def _warm_up(runner: TorchRunner) -> None:
    """Run one token through the model: compiles the kernels the first time on a machine, loads them from numba's cache afterwards."""
    chunk = Chunk("warm-up", tokens=(0,), start=0, blocks=(0,), samples=True, params=SamplingParams(temperature=0), seed=0)
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
