"""A batch's logits with what has been learnt by looking at all of them once."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from mqlab_kernels.peaks_cpu import BLOCK, survey
from torch import Tensor

from mqlab.model.attention import KERNELS


@dataclass(slots=True)
class Rows:
    """S rows of logits.

    Attributes:
        logits: [S, vocab] float32.
        peaks: [S, ceil(vocab / BLOCK)] float32, the largest logit of each block.
        likeliest: [S] int64, the lowest id among the largest logits.
        sums: [S] float32, of the logits when they were looked at.
    """

    logits: np.ndarray
    peaks: np.ndarray
    likeliest: np.ndarray
    sums: np.ndarray

    @staticmethod
    def of(logits: Tensor) -> Rows:
        """Of [S, vocab] float32, whose memory is shared."""
        values = logits.contiguous().numpy()
        count, vocab = values.shape
        rows = Rows(values, np.empty((count, -(-vocab // BLOCK)), np.float32), np.empty(count, np.int64), np.empty(count, np.float32))
        with KERNELS:
            survey(values, rows.peaks, rows.likeliest, rows.sums)
        return rows

    @property
    def tops(self) -> np.ndarray:
        """[S] float32, the largest logits."""
        return self.logits[np.arange(len(self.logits)), self.likeliest]

    def copy(self, rows: np.ndarray) -> Rows:
        """Some of them, [n] int64, with memory of their own."""
        return Rows(self.logits[rows], self.peaks[rows], self.likeliest[rows], self.sums[rows])

    def broken(self) -> list[int]:
        """Which of them have a largest logit that is not a finite number; ``likeliest`` then says where it is."""
        suspects = np.flatnonzero(~np.isfinite(self.sums))
        self.likeliest[suspects] = self.logits[suspects].argmax(-1)  # the first NaN where there is one
        return suspects[~np.isfinite(self.tops[suspects])].tolist()
