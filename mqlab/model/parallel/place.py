"""Where a process stands among those that share a model."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from torch._C._distributed_c10d import FileStore, Store

from mqlab.config import EngineConfig, check
from mqlab.model.accel.choice import choose
from mqlab.model.parallel.group import TorchGroup


@dataclass(frozen=True)
class Place:
    """One process.

    Attributes:
        rank: among all ranks, and size: how many there are.
        local_rank: among those of this machine, and local_size: how many these are.
    """

    rank: int
    size: int
    local_rank: int
    local_size: int

    def check(self, config: EngineConfig) -> None:
        """See that there is a device for each rank of this machine: before any of them waits for the others.

        Raises:
            ConfigError: this machine has fewer GPUs than ranks.
        """
        if choose(config).device == "cuda":
            count = torch.cuda.device_count()
            short = f"needs a GPU for each rank, and this machine, which has {self.local_size} of them, has {count}"
            check(self.local_size <= count, config, "tensor_parallel_size", f"{short}; lower it, or use torchrun over more machines")

    def meet(self, store: Store, config: EngineConfig) -> TorchGroup:
        """The group, once all ranks have come. A rank of GPUs takes that of its place.

        Args:
            store: the same for all ranks, and used once.

        Raises:
            PeerLost: a rank did not come.
        """
        device = choose(config).device
        if device == "cuda":
            torch.cuda.set_device(self.local_rank)
        return TorchGroup(store, self.rank, self.size, device, local=self.local_size == self.size)


def local_store(run_dir: Path, size: int) -> Store:
    """Where the ranks of one machine find each other: a file of their run folder, so no port of the machine is taken."""
    return FileStore(str(run_dir / "store"), size)
