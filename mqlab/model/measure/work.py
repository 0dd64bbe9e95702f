"""What a use of a kernel has to move and to compute, found without memory or a device: on shapes alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from mqlab.model.measure.kernels import MAKERS


def work_of(kernel: str, dtype: str, sizes: Mapping[str, Any]) -> tuple[int, int]:
    """Bytes that have to be read and written at least, and operations that have to be done."""
    use = MAKERS[kernel](torch.device("meta"), getattr(torch, dtype), **sizes)
    return use.moved, use.flops
