"""Weights made up from a seed, for the shape of a model whose real ones are not at hand."""

from __future__ import annotations

import hashlib
import math

import torch
from torch import Tensor

_STD = 0.02
_LENGTH = 1_048_583
"""Prime, so that a repeated stretch of numbers never lines up with the rows of a matrix."""


class DummyWeights:
    """A ``TensorSource`` that has any tensor by name: norms are 1, everything else is normal with standard deviation 0.02.

    The same name, shape and seed give the same tensor in every process. Billions of numbers are cheap, as all tensors are cut out
    of one stretch of a million, each from a place that its name decides.

    Args:
        dtype: of the tensors.
        seed: of the numbers.
        device: where they are put together, from numbers drawn on the CPU, so that they are the same; a GPU does it much faster.
    """

    def __init__(self, dtype: torch.dtype, seed: int = 0, device: torch.device | None = None) -> None:
        self._dtype = dtype
        self._seed = seed
        self._device = device
        noise = torch.empty(_LENGTH).normal_(0.0, _STD, generator=torch.Generator().manual_seed(seed))
        self._noise = noise.to(device=device, dtype=dtype)

    def __contains__(self, name: str) -> bool:
        """No: any tensor can be had, and none is stated by a checkpoint."""
        return False

    def read(self, name: str, *shape: int) -> Tensor:
        """One tensor of ``shape``; a weight with one dimension is a norm's."""
        if len(shape) == 1 and name.endswith("weight"):
            return torch.ones(shape, dtype=self._dtype, device=self._device)
        return self._cut(_place(name, self._seed), math.prod(shape)).view(shape)

    def _cut(self, start: int, count: int) -> Tensor:
        out = torch.empty(count, dtype=self._dtype, device=self._device)
        done = 0
        while done < count:
            piece = self._noise[start : start + count - done]
            out[done : done + len(piece)] = piece
            done, start = done + len(piece), 0
        return out


def _place(name: str, seed: int) -> int:
    return int.from_bytes(hashlib.blake2b(f"{seed}\0{name}".encode(), digest_size=8).digest()) % _LENGTH
