"""The paged KV cache: one pool of blocks a layer, addressed by block tables."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import psutil
import torch
from torch import Tensor

from mqlab.config import EngineConfig, check
from mqlab.errors import ConfigError
from mqlab.model.shape import ModelShape

_DEFAULT_GB = 1.0


@dataclass(frozen=True)
class Pool:
    """Keys and values of one layer.

    Attributes:
        keys: [blocks, KV heads, block size, D]: a head's tokens of one block are contiguous, as the kernel reads them.
        values: likewise.
    """

    keys: Tensor
    values: Tensor


@dataclass(frozen=True)
class LayerCache(Pool):
    """A ``Pool`` of this machine's memory.

    Attributes:
        key_bits: the memory of ``keys`` for numba: float32, or bfloat16 bits as uint16.
        value_bits: likewise.
    """

    key_bits: np.ndarray
    value_bits: np.ndarray


def allocate(shape: ModelShape, num_blocks: int, block_size: int, dtype: torch.dtype) -> list[LayerCache]:
    """One LayerCache a layer. The memory is touched only as blocks are first used.

    Raises:
        ConfigError: the machine has not that much, or refuses it.
    """
    check_memory(shape, num_blocks, block_size, dtype)
    try:
        return [_layer((num_blocks, heads, block_size, size), dtype) for heads, size in shape.kv_shapes]
    except RuntimeError as error:
        size = num_blocks * block_bytes(shape, block_size, dtype) / 2**30
        message = f"{num_blocks} KV blocks take {size:.0f} GiB, which this machine refuses; lower --num-kv-blocks or --kv-cache-gb"
        raise ConfigError(message) from error


def check_memory(shape: ModelShape, num_blocks: int, block_size: int, dtype: torch.dtype, ranks: int = 1) -> None:
    """See that there is room for as many blocks, in each of so many processes.

    Raises:
        ConfigError: the machine has not that much.
    """
    size = ranks * num_blocks * block_bytes(shape, block_size, dtype)
    # The system promises more than it has, and kills the engine when the blocks are used.
    available = psutil.virtual_memory().available
    if size > available:
        each = f" in each of {ranks} processes" if ranks > 1 else ""
        message = f"{num_blocks} KV blocks{each} take {size / 2**30:.1f} GiB, this machine has {available / 2**30:.1f} GiB available"
        raise ConfigError(f"{message}; lower --num-kv-blocks or --kv-cache-gb")


def _layer(size: tuple[int, ...], dtype: torch.dtype) -> LayerCache:
    keys, values = torch.empty(size, dtype=dtype), torch.empty(size, dtype=dtype)
    return LayerCache(keys, values, _bits(keys), _bits(values))


def _bits(cache: Tensor) -> np.ndarray:
    return cache.numpy() if cache.dtype == torch.float32 else cache.view(torch.uint16).numpy()


def block_bytes(shape: ModelShape, block_size: int, dtype: torch.dtype) -> int:
    """Memory of one block over all layers, keys and values."""
    return 2 * sum(heads * size for heads, size in shape.kv_shapes) * block_size * dtype.itemsize


def count_blocks(config: EngineConfig, shape: ModelShape, dtype: torch.dtype) -> int:
    """Blocks in a CPU's pool: what the config names, or what the memory holds that it gives.

    Raises:
        ConfigError: the memory holds no block.
    """
    if config.num_kv_blocks is not None:
        return config.num_kv_blocks
    size = block_bytes(shape, config.block_size, dtype)
    count = math.floor(kv_cache_gb(config) * 2**30 / size)
    check(count >= 1, config, "kv_cache_gb", f"holds no KV block: one takes {size / 2**30:.3g} GiB; raise it or lower --block-size")
    return count


def kv_cache_gb(config: EngineConfig) -> float:
    """GiB of the KV cache, where blocks are not counted: what the config says, or 1."""
    return _DEFAULT_GB if config.kv_cache_gb is None else config.kv_cache_gb
