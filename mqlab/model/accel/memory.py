"""How much of a device's memory the KV cache gets."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor

from mqlab.config import EngineConfig
from mqlab.errors import ConfigError
from mqlab.model.accel.accelerator import Accelerator
from mqlab.model.accel.backends.operations import Decodes, Prefills
from mqlab.model.accel.buffers import Batch, Limits
from mqlab.model.accel.decoder import DeviceDecoder
from mqlab.model.kv import Pool, block_bytes, check_memory, count_blocks
from mqlab.model.making import Group
from mqlab.model.shape import ModelShape

_SPARE = 1
"""Blocks behind those that the scheduler deals out: where backends without a masked store put what is to be stored nowhere."""

_GRAPH_SHARE = 1.25
"""What the graphs hold, against the memory of the largest step that they run: they share one pool, which is not used to the full."""

_GRAPH_BYTES = 192 << 20
"""And beside that: workspaces of cuBLAS that belong to a capture, and what the driver keeps for each graph."""


@dataclass(frozen=True)
class Need:
    """Bytes that a step takes beside weights and KV cache.

    Attributes:
        step: of the largest step.
        graphs: of what is captured.
    """

    step: int
    graphs: int


def allocate_pool(shape: ModelShape, num_blocks: int, block_size: int, dtype: torch.dtype, device: torch.device) -> list[Pool]:
    """One Pool a layer, of zeros, with a block more than asked for that is nobody's.

    Raises:
        ConfigError: the device has not that much.
    """
    if device.type == "cpu":
        check_memory(shape, num_blocks, block_size, dtype)
    try:
        return [
            Pool(*(torch.zeros((num_blocks + _SPARE, heads, block_size, size), dtype=dtype, device=device) for _ in range(2)))
            for heads, size in shape.kv_shapes
        ]
    except RuntimeError as error:  # torch.OutOfMemoryError is one
        size = num_blocks * block_bytes(shape, block_size, dtype) / 2**30
        remedy = "lower --num-kv-blocks, --kv-cache-gb or --gpu-memory-utilization"
        raise ConfigError(f"{num_blocks} KV blocks take {size:.1f} GiB, which {device} refuses ({_first_line(error)}); {remedy}") from error


def allocate_on_all(group: Group, allocate: Callable[[], list[Pool]]) -> list[Pool]:
    """A cache on each rank, or on none: one that went on by itself would wait for the others for ever.

    Raises:
        ConfigError: this rank's device has not that much, or another's.
    """
    refused: ConfigError | None = None
    pools: list[Pool] = []
    try:
        pools = allocate()
    except ConfigError as error:
        refused = error
    if not group.least(refused is None):
        raise refused or ConfigError("another GPU refuses the KV cache; lower --num-kv-blocks, --kv-cache-gb or --gpu-memory-utilization")
    return pools


def device_blocks(config: EngineConfig, shape: ModelShape, dtype: torch.dtype, accelerator: Accelerator, need: Callable[[], Need]) -> int:
    """Blocks in the pool: those of the config, what its --kv-cache-gb holds, or what the device has left within --gpu-memory-utilization.

    Args:
        need: measures what a step takes; called where it matters, with the weights in memory.

    Raises:
        ConfigError: that is less than a block.
    """
    if config.num_kv_blocks is not None or config.kv_cache_gb is not None or accelerator.device.type == "cpu":
        return count_blocks(config, shape, dtype)
    taken = need()
    accelerator.release()
    memory = accelerator.memory()
    share = config.memory_share
    others = memory.total - memory.free - memory.held
    left = memory.total * share - others - memory.used - taken.step - taken.graphs
    size = block_bytes(shape, config.block_size, dtype)
    count = math.floor(left / size) - _SPARE
    if count < 1:
        parts = {"weights": memory.used, "a step": taken.step, "graphs": taken.graphs, "others on this GPU": others}
        told = ", ".join(f"{name} {value / 2**30:.2f}" for name, value in parts.items())
        raise ConfigError(
            f"--gpu-memory-utilization={share:g} of {memory.total / 2**30:.1f} GiB leaves no KV block of {size / 2**20:.2f} MiB beside "
            f"(GiB) {told}; raise it, lower --max-num-batched-tokens or --max-num-seqs, or serve a smaller model"
        )
    return count


def measure_need(
    accelerator: Accelerator, decoder: DeviceDecoder, limits: Limits, max_len: int, draws: int, graph_rows: int, dtype: torch.dtype
) -> Need:
    """Run the largest steps, and the largest that is captured, over a cache of one block, and see what they take.

    Args:
        max_len: of a sequence.
        draws: rows of logits at most.
        graph_rows: of the largest graph, 0 for none.
    """
    pool = allocate_pool(decoder.arch, 0, limits.block_size, dtype, accelerator.device)

    def peak(batch: Batch) -> int:
        return _peak(accelerator, lambda: _run(decoder, pool, batch, draws))

    prompts, decodes = long_prompts(limits, max_len, accelerator.device), long_decodes(limits.rows, limits, max_len, accelerator.device)
    step = max(peak(prompts), peak(decodes))
    if not graph_rows:
        return Need(step, 0)
    captured = peak(long_decodes(graph_rows, limits, max_len, accelerator.device))
    return Need(step, round(captured * _GRAPH_SHARE) + _GRAPH_BYTES)


def _peak(accelerator: Accelerator, run: Callable[[], None]) -> int:
    """Bytes that were in use at once, beyond those before."""
    run()  # what is made at the first call, and stays, is none of a step's
    accelerator.finish()
    before = accelerator.memory().used
    accelerator.reset_peak()
    run()
    accelerator.finish()
    return accelerator.memory().peak - before


def _run(decoder: DeviceDecoder, cache: list[Pool], batch: Batch, draws: int) -> None:
    """A step up to its logits and a copy of these, which a sampler may make."""
    decoder.logits(decoder.states(batch, cache)[:draws].clone()).clone()


def long_prompts(limits: Limits, max_len: int, device: torch.device) -> Batch:
    """As many tokens as a step holds, at the end of sequences as long as they may be. Nothing is stored, and all blocks are the first."""
    count, rest = divmod(limits.tokens, max_len)
    lengths = [max_len] * count + [rest] * (rest > 0)
    rows, total = len(lengths), sum(lengths)
    starts = torch.tensor([0, *accumulate(lengths)], dtype=torch.int32, device=device)
    contexts = torch.full((rows,), max_len, dtype=torch.int32, device=device)
    positions = torch.cat([torch.arange(max_len - length, max_len) for length in lengths]).to(device)
    prefills = Prefills(_first_blocks(rows, limits, device), contexts, starts, tuple(lengths), (max_len,) * rows)
    slots = torch.full((total,), -1, device=device)
    return Batch(torch.zeros_like(slots), positions, slots, None, prefills, 0, None, total)


def long_decodes(rows: int, limits: Limits, max_len: int, device: torch.device) -> Batch:
    """As many decodes of sequences as long as they may be; otherwise as above."""
    slots = torch.full((rows,), -1, device=device)
    contexts = torch.full((rows,), max_len, dtype=torch.int32, device=device)
    decodes = Decodes(_first_blocks(rows, limits, device), contexts)
    return Batch(torch.zeros_like(slots), torch.full_like(slots, max_len - 1), slots, decodes, None, rows, None, rows)


def _first_blocks(rows: int, limits: Limits, device: torch.device) -> Tensor:
    return torch.zeros((rows, limits.blocks), dtype=torch.int32, device=device)


@contextmanager
def memory_left(what: str) -> Iterator[None]:
    """What needs memory beside weights and KV cache.

    Args:
        what: it is for, for whoever must be told.

    Raises:
        ConfigError: the device has not that much.
    """
    try:
        yield
    except torch.OutOfMemoryError as error:
        remedy = "lower --gpu-memory-utilization, --kv-cache-gb or --num-kv-blocks, or --max-num-batched-tokens, or pass --enforce-eager"
        raise ConfigError(f"the GPU has too little memory left {what} ({_first_line(error)}); {remedy}") from error


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__
