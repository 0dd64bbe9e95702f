"""Block tables on the device, of which a step moves what changed."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from mqlab.model.accel.accelerator import Accelerator
from mqlab.plan import Chunk

_NONE: tuple[int, ...] = ()


class Tables:
    """Each row's blocks, on the host and, at an address that a graph can hold, on the device.

    A table is as wide as the longest sequence there may be, and all of them for 256 rows of 131,072 tokens are 8 MiB; but with blocks of 16
    tokens a decode step adds an entry to one row of sixteen. So a step brings the entries that differ, or its rows where they are many.

    Attributes:
        host: [rows, blocks] int32, as after the last ``put``.
        device: [rows, blocks] int32, as after the last ``change`` or ``move``.
    """

    def __init__(self, accelerator: Accelerator, rows: int, blocks: int) -> None:
        self._pinned = accelerator.pinned(rows * blocks, torch.int32).view(rows, blocks)
        self.host = self._pinned.numpy()
        self.device = torch.zeros(rows, blocks, dtype=torch.int32, device=accelerator.device)
        self._moved = accelerator.event()
        self._known = [_NONE] * rows
        self._flat = self.host.reshape(-1)

    def put(self, chunks: tuple[Chunk, ...]) -> np.ndarray:
        """Take the blocks of these chunks, a row each. Returns the entries that changed, [N] int64, counted through all rows."""
        self._moved.wait()
        changed = list[np.ndarray]()
        for row, chunk in enumerate(chunks):
            blocks, known = chunk.blocks, self._known[row]
            if blocks is not known:  # a sequence's are one object for many steps
                changed.append(self._put_row(row, blocks, known))
        return np.concatenate(changed) if changed else np.empty(0, np.int64)

    def blocks_in(self, entries: np.ndarray) -> np.ndarray:
        """What they hold, [N] int32."""
        return self._flat[entries]

    def change(self, entries: Tensor, blocks: Tensor) -> None:
        """Enqueue what the last ``put`` changed, which is on the device: its entries, and what they hold."""
        self.device.view(-1).index_copy_(0, entries, blocks)

    def move(self, rows: int) -> None:
        """Enqueue a copy of the first rows, all that the last ``put`` was of."""
        self.device[:rows].copy_(self._pinned[:rows], non_blocking=True)
        self._moved.record()

    def _put_row(self, row: int, blocks: tuple[int, ...], known: tuple[int, ...]) -> np.ndarray:
        self._known[row] = blocks
        same = len(known) if blocks[: len(known)] == known else 0
        line, new = self.host[row, same : len(blocks)], np.array(blocks[same:], np.int32)
        changed = np.flatnonzero(line != new)
        line[:] = new
        return row * self.host.shape[1] + same + changed
