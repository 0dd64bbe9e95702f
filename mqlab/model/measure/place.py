"""Where the bench measures: the GPU, or a CPU on which Triton's interpreter stands in for one."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Literal

import psutil
import torch

from mqlab.config import DeviceKind, interpret_triton
from mqlab.model.measure.rows import Facts

DeviceName = Literal["cpu", "cuda"]


@dataclass(frozen=True)
class Place:
    """A device by its kind."""

    kind: DeviceName

    def open(self) -> torch.device:
        """Torch's name for it; on a CPU kernels are interpreted from now on."""
        if self.kind == "cpu":
            _interpret()
            return torch.device("cpu")
        return torch.device("cuda", torch.cuda.current_device())

    def free_bytes(self) -> int:
        """Memory that nobody uses, what torch only keeps for itself included."""
        if self.kind == "cpu":
            return psutil.virtual_memory().available
        torch.cuda.empty_cache()
        return torch.cuda.mem_get_info()[0]

    def wait(self) -> None:
        """Until it has done all that it was given."""
        if self.kind == "cuda":
            torch.cuda.synchronize()


def look(*, device: DeviceKind) -> list[Facts]:
    """The device that was asked for; of ``auto`` the GPU where there is one, else the CPU. Nothing where the GPU asked for is not there."""
    if device != "cpu" and torch.cuda.is_available():
        return [_gpu()]
    if device == "cuda":
        return []
    memory = psutil.virtual_memory()
    return [Facts("cpu", "CPU, kernels in Triton's interpreter", memory.total / 2**30, memory.available / 2**30, software=_software())]


def _gpu() -> Facts:
    index = torch.cuda.current_device()
    facts = torch.cuda.get_device_properties(index)
    free, total = torch.cuda.mem_get_info(index)
    return Facts(
        kind="cuda",
        name=facts.name,
        memory_gib=total / 2**30,
        free_gib=free / 2**30,
        capability=10 * facts.major + facts.minor,
        l2_mib=facts.L2_cache_size / 2**20,
        software={"cuda": str(torch.version.cuda), **_software()},
    )


def _software() -> dict[str, str]:
    found = {"torch": str(torch.__version__)}
    with contextlib.suppress(PackageNotFoundError):
        found["triton"] = version("triton")
    return found


def _interpret() -> None:
    interpret_triton()
    try:
        from mqlab_kernels.interpreter import patch
    except ImportError:  # no Triton: what needs it says so
        return
    patch()
