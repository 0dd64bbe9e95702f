"""From a config to a runner on a device: the model found, moved there, measured, captured and warmed up."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from mqlab.bars import progress_bar
from mqlab.config import EngineConfig, Settings
from mqlab.errors import ConfigError, ModelError
from mqlab.model.accel.accelerator import Accelerator, CudaAccelerator, HostAccelerator
from mqlab.model.accel.backends.registry import BACKENDS
from mqlab.model.accel.buffers import Limits, StepBuffers
from mqlab.model.accel.choice import Choice
from mqlab.model.accel.decoder import DeviceDecoder
from mqlab.model.accel.following import FollowingSampler, StepSampler
from mqlab.model.accel.graphs import Graphs, graph_sizes
from mqlab.model.accel.memory import allocate_on_all, allocate_pool, device_blocks, measure_need, memory_left
from mqlab.model.accel.products import DenseProduct, DeviceSource
from mqlab.model.accel.rehearsal import warm_up_plans
from mqlab.model.accel.runner import DeviceRunner
from mqlab.model.accel.sampler import DeviceSampler
from mqlab.model.accel.steps import Steps
from mqlab.model.allocator import keep_freed_memory
from mqlab.model.architecture import Architecture, read_architecture
from mqlab.model.cost import ModelCost
from mqlab.model.dummy import DummyWeights
from mqlab.model.info import context_limit, model_info
from mqlab.model.kv import block_bytes, count_blocks
from mqlab.model.layers import Product
from mqlab.model.load import lacking, loading, threads_of
from mqlab.model.making import ALONE, Group, Making
from mqlab.model.parallel.shares import local
from mqlab.model.weights import Weights
from mqlab.models.resolve import load_config, resolve
from mqlab.plan import Plan
from mqlab.types import ModelInfo

logger = logging.getLogger("mqlab.model")


@dataclass(frozen=True)
class Foreseen:
    """What a model on a device will be.

    Attributes:
        folder: of the model.
        arch: shape of the whole.
        shape: of this rank's share.
        info: with blocks as many as the device would have room for if steps took nothing, where its memory decides.
    """

    folder: Path
    arch: Architecture
    shape: Architecture
    info: ModelInfo


def can_run(config: EngineConfig) -> bool:
    """Whether the model is of a family that the device decoder knows; False leaves it to the CPU, where nothing else was asked for.

    Raises:
        ModelError: it is not, and a device or its kernels were asked for; or there is none.
    """
    missing = lacking(config)
    if not missing:
        return True
    if config.device == "cuda" or config.attention_backend != "auto":
        remedy = "run it by transformers on the CPU: --device cpu, and no --attention-backend"
        raise ModelError(f"{config.model} cannot run on a GPU or by these kernels ({missing}); {remedy}")
    logger.warning("%s runs on the CPU, though there is a GPU, for transformers computes it there: %s", config.model, missing)
    return False


def build(config: EngineConfig, choice: Choice, group: Group = ALONE) -> DeviceRunner:
    """Resolve, load, measure and warm up a model, or a share of it: then every rank of the group does this at once.

    Raises:
        ConfigError: a limit of the config does not fit the model, or the device's memory.
        ModelError: the model cannot be found, read or served.
    """
    found = foresee(config, choice, group)
    keep_freed_memory()
    accelerator = open_accelerator(config, choice)
    with accelerator.active(), torch.inference_mode():
        with loading(found.folder):
            decoder = read_decoder(config, choice, found, accelerator, group)
        with memory_left("for the largest step"):
            runner = _open(config, choice, found, accelerator, decoder)
    if choice.device == "cuda":
        with memory_left("for the largest steps"):
            _warm_up(runner, warm_up_plans(runner.info, config.max_num_batched_tokens))
    elif choice.backend != "triton":  # Triton's interpreter compiles nothing, and takes seconds a step
        _warm_up(runner, warm_up_plans(runner.info, most_tokens=1))
    return runner


def foresee(config: EngineConfig, choice: Choice, group: Group = ALONE) -> Foreseen:
    """What a model will be; fetched where it must be, but neither read nor given memory.

    Raises:
        ConfigError, ModelError: as ``build``.
    """
    folder = resolve(config.model, Settings.read().cache_dir, load_format=config.load_format)
    arch = read_architecture(load_config(folder))
    shape = local(arch, group)
    name = str(choice.dtype).removeprefix("torch.")
    info = model_info(config, folder, arch, name, group.least(_most_blocks(config, choice, shape, name)))
    return Foreseen(folder, arch, shape, info)


def open_accelerator(config: EngineConfig, choice: Choice) -> Accelerator:
    """The device of this process: the current GPU, or the CPU."""
    if choice.device == "cuda":
        return CudaAccelerator(torch.cuda.current_device())
    return HostAccelerator(threads_of(config))


def read_decoder(config: EngineConfig, choice: Choice, found: Foreseen, accelerator: Accelerator, group: Group = ALONE) -> DeviceDecoder:
    """The model's weights, on the device; within ``active``.

    Raises:
        ModelError: a tensor is missing or of another shape.
    """
    dummy = config.load_format == "dummy"
    source = DummyWeights(choice.dtype, device=accelerator.device) if dummy else Weights(found.folder, choice.dtype)
    making = Making(_product(config, choice), group)
    max_len = context_limit(config, found.arch)
    decoder = DeviceDecoder(found.arch, DeviceSource(source, accelerator.device), max_len, BACKENDS[choice.backend](), making)
    if isinstance(source, Weights):
        source.note_unread()
    return decoder


def limits_of(config: EngineConfig, max_len: int) -> Limits:
    """What the steps of a config hold at most."""
    return Limits(config.max_num_batched_tokens, config.max_num_seqs, -(-max_len // config.block_size), config.block_size)


def _open(config: EngineConfig, choice: Choice, found: Foreseen, accelerator: Accelerator, decoder: DeviceDecoder) -> DeviceRunner:
    limits, sizes = limits_of(config, found.info.max_model_len), graph_sizes(config)
    draws = min(limits.tokens, limits.rows * (1 + config.num_speculative_tokens))
    need = partial(measure_need, accelerator, decoder, limits, found.info.max_model_len, draws, max(sizes, default=0), choice.dtype)
    blocks = decoder.group.least(device_blocks(config, decoder.arch, choice.dtype, accelerator, need))
    info = model_info(config, found.folder, found.arch, found.info.dtype, blocks)
    buffers, sampler = StepBuffers(accelerator, limits), _sampler(config, choice, decoder, draws, accelerator)

    def steps() -> Steps:
        allocate = partial(allocate_pool, decoder.arch, blocks, config.block_size, choice.dtype, accelerator.device)
        cache = allocate_on_all(decoder.group, allocate)
        try:
            graphs = Graphs(accelerator, decoder, cache, buffers, sizes, config.torch_compile)
        except BaseException:
            decoder.group.close()  # in the midst of collectives, in which others wait for this rank
            raise
        return Steps(decoder, cache, buffers, graphs, sampler)

    return DeviceRunner(info, accelerator, steps, sampler)


def _sampler(config: EngineConfig, choice: Choice, decoder: DeviceDecoder, rows: int, accelerator: Accelerator) -> StepSampler:
    if decoder.group.rank:
        return FollowingSampler(rows, accelerator.device)
    return DeviceSampler(rows, decoder.arch.vocab, accelerator.device, choice.backend, config.logprobs_mode)


def _product(config: EngineConfig, choice: Choice) -> Callable[[Tensor, Tensor | None], Product]:
    if config.quantization == "none":
        return DenseProduct
    from mqlab.model.accel.quantised import quantised_product

    return partial(quantised_product, backend=choice.backend)


def _most_blocks(config: EngineConfig, choice: Choice, shape: Architecture, dtype: str) -> int:
    """Blocks of a config; where the GPU's memory decides, those that it holds beside the weights.

    Raises:
        ConfigError: none, or not even the weights.
    """
    if choice.device == "cpu" or config.num_kv_blocks is not None or config.kv_cache_gb is not None:
        return count_blocks(config, shape, choice.dtype)
    share = config.memory_share
    total = torch.cuda.get_device_properties(torch.cuda.current_device()).total_memory
    weights = ModelCost.of_architecture(shape, dtype).weight_bytes // (2 if config.quantization == "w8a8" else 1)
    count = int((total * share - weights) // block_bytes(shape, config.block_size, choice.dtype))
    if count < 1:
        raise ConfigError(
            f"--gpu-memory-utilization={share:g} of this GPU's {total / 2**30:.1f} GiB holds no KV block beside weights of "
            f"{weights / 2**30:.1f} GiB; raise it, serve a smaller model, or share it between GPUs with --tensor-parallel-size"
        )
    return count


def _warm_up(runner: DeviceRunner, plans: list[Plan]) -> None:
    """Run what requests will bring, once: kernels are compiled here, for no request must wait for a compiler."""
    for plan in progress_bar("warming up (compiles kernels the first time)", iterable=plans, unit="step"):
        runner.launch(plan).wait()
