"""What rows of logits ask of the sampler: on the device at addresses that never change, packed on the host, moved by one copy."""

from __future__ import annotations

from collections import deque

import numpy as np
import torch
from torch import Tensor

from mqlab.plan import Chunk
from mqlab.types import SamplingParams

_IN_FLIGHT = 2


class Asked:
    """The parameters of up to ``max_rows`` rows on a device.

    Two steps may be in flight, so they are packed in two places in turns; the device's own is written in the order of its stream.

    Attributes:
        temperatures: [max_rows] float64; 0 takes the likeliest.
        top_ps, min_ps: [max_rows] float64.
        top_ks, seeds, indices: [max_rows] int64.
        nucleus: whether a row has a top_p below 1.
    """

    def __init__(self, max_rows: int, device: torch.device) -> None:
        self._memory = torch.zeros((6, max_rows), dtype=torch.int64, device=device)
        self.temperatures, self.top_ps, self.min_ps = self._memory[:3].view(torch.float64)
        self.top_ks, self.seeds, self.indices = self._memory[3:]
        self.nucleus = False
        self._stagings = deque(_Staging(max_rows, device) for _ in range(_IN_FLIGHT))

    def load(self, chunks: tuple[Chunk, ...]) -> None:
        """Pack what these chunks, one a row, ask for, and enqueue its copy to the device."""
        staging = self._stagings[0]
        self._stagings.rotate()
        self.nucleus = staging.put(chunks)
        staging.move_to(self._memory)

    def first(self, rows: int) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
        """temperatures, top_ks, top_ps, min_ps, seeds and indices of the first rows: the arguments of ``sample`` behind the logits."""
        every = self.temperatures, self.top_ks, self.top_ps, self.min_ps, self.seeds, self.indices
        temperatures, top_ks, top_ps, min_ps, seeds, indices = (one[:rows] for one in every)
        return temperatures, top_ks, top_ps, min_ps, seeds, indices


class _Staging:
    """Host memory, pinned for a GPU, that one step's parameters are packed in."""

    def __init__(self, max_rows: int, device: torch.device) -> None:
        on_gpu = device.type == "cuda"
        self._memory = torch.zeros((6, max_rows), dtype=torch.int64, pin_memory=on_gpu)
        self._moved = torch.cuda.Event() if on_gpu else None
        self._numbers = self._memory.numpy()
        self._ratios = self._numbers[:3].view(np.float64)
        self._known: list[SamplingParams | None] = [None] * max_rows

    def put(self, chunks: tuple[Chunk, ...]) -> bool:
        """Write the beginning of every line, once the device has read what was there. Returns whether a row has a top_p below 1."""
        if self._moved is not None:
            self._moved.synchronize()
        for row, chunk in enumerate(chunks):
            if self._known[row] is not chunk.params:  # those of a request are the same object for many steps
                self._put_params(row, chunk.params)
        count = len(chunks)
        # A uint64's bits, whatever the seed.
        self._numbers[4].view(np.uint64)[:count] = [chunk.seed for chunk in chunks]
        self._numbers[5, :count] = [chunk.output_index for chunk in chunks]
        return bool((self._ratios[1, :count] < 1).any())

    def move_to(self, memory: Tensor) -> None:
        """Enqueue the copy."""
        memory.copy_(self._memory, non_blocking=True)
        if self._moved is not None:
            self._moved.record()

    def _put_params(self, row: int, params: SamplingParams) -> None:
        self._ratios[:, row] = 0.0 if params.greedy else params.temperature, params.top_p, params.min_p
        self._numbers[3, row] = params.top_k
        self._known[row] = params
