"""A product with a matrix, on a device."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from mqlab.model.weights import TensorSource


@dataclass(frozen=True)
class DenseProduct:
    """y = x W^T + b: [M, K] -> [M, N], in and out in the weight's dtype.

    Attributes:
        weight: [N, K].
        bias: [N], or None.
    """

    weight: Tensor
    bias: Tensor | None = None

    def __call__(self, x: Tensor) -> Tensor:
        """[M, K] -> [M, N]."""
        return F.linear(x, self.weight, self.bias)


class DeviceSource:
    """A ``TensorSource`` whose tensors are on a device, moved one by one as they are read.

    Args:
        source: reads them.
        device: where they go.
    """

    def __init__(self, source: TensorSource, device: torch.device) -> None:
        self._source = source
        self._device = device

    def __contains__(self, name: str) -> bool:
        """Whether a checkpoint states the tensor."""
        return name in self._source

    def read(self, name: str, *shape: int) -> Tensor:
        """One tensor of the expected shape.

        Raises:
            ModelError: there is none, or it has another shape.
        """
        return self._source.read(name, *shape).to(self._device)
