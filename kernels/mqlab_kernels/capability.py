"""Which GPU a launch is for."""

from __future__ import annotations

from functools import cache

import torch


@cache
def capability(device: torch.device) -> int:
    """Compute capability of a GPU, such as 90, as far as configs go by it; of a CPU, on which the interpreter runs, H100's."""
    if device.type != "cuda":
        return 90
    major, minor = torch.cuda.get_device_capability(device)
    # 12.x, the Blackwell of workstations, has the 99 KiB of shared memory of 8.6, and none of B200's tensor memory.
    return 80 if major == 12 else 10 * major + minor
