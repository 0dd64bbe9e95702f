"""Which tokens of a batch are drawn rather than taken, and from what."""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np
from mqlab_kernels.draw_cpu import draw, limits
from mqlab_kernels.race_cpu import ALL

from mqlab.model.attention import KERNELS
from mqlab.model.logprobs_of import Limits
from mqlab.model.rows import Rows
from mqlab.plan import Chunk


@dataclass(frozen=True, slots=True)
class Draws:
    """The draws of a batch.

    Attributes:
        at: [n] int64, the rows that are drawn; the others take the likeliest token.
        tops: [n] float32, the largest logit of each, finite.
        scales: [n] float32, 1 / temperature.
        floors: [n] float32, the least logit that min_p keeps.
        ks: [n] int64, of top_k; 0 or less keeps all.
        ps: [n] float64, of top_p.
        seeds: [n] uint64; ``indices`` likewise.
    """

    at: np.ndarray
    tops: np.ndarray
    scales: np.ndarray
    floors: np.ndarray
    ks: np.ndarray
    ps: np.ndarray
    seeds: np.ndarray
    indices: np.ndarray

    @staticmethod
    def of(rows: Rows, chunks: tuple[Chunk, ...]) -> Draws:
        """What these chunks, one a row, ask for, after all that changes logits. A row of masked tokens is not drawn."""
        params = [chunk.params for chunk in chunks]
        return Draws.asked(
            rows,
            temperatures=np.array([0.0 if one.greedy else one.temperature for one in params], np.float64),
            ks=np.array([one.top_k for one in params], np.int64),
            ps=np.array([one.top_p for one in params], np.float64),
            ratios=np.array([one.min_p for one in params], np.float64),
            seeds=np.array([chunk.seed for chunk in chunks], np.uint64),
            indices=np.array([chunk.output_index for chunk in chunks], np.uint64),
        )

    @staticmethod
    def asked(
        rows: Rows, temperatures: np.ndarray, ks: np.ndarray, ps: np.ndarray, ratios: np.ndarray, seeds: np.ndarray, indices: np.ndarray
    ) -> Draws:
        """Likewise, by [S] numbers: ``temperatures`` and min_p as ``ratios`` float64, 0 being greedy; ``seeds`` and ``indices`` 64 bits."""
        tops = rows.tops
        at = np.flatnonzero((temperatures > 0) & np.isfinite(tops))
        return Draws(
            at=at,
            tops=tops[at],
            scales=(1 / temperatures[at]).astype(np.float32),
            floors=_floors(tops[at], temperatures[at], ratios[at]),
            ks=ks[at],
            ps=ps[at],
            seeds=seeds[at].view(np.uint64),
            indices=indices[at].view(np.uint64),
        )

    def tokens(self, rows: Rows) -> np.ndarray:
        """[S] int64, one a row; -1 where every token is masked."""
        tokens = np.where(rows.tops > -np.inf, rows.likeliest, -1)
        if len(self.at):
            drawn = np.empty(len(self.at), np.int64)
            with KERNELS:
                draw(rows.logits, rows.peaks, *self._filters(), self.seeds, self.indices, drawn)
            tokens[self.at] = drawn
        return tokens

    def limits(self, rows: Rows, asked: np.ndarray, tokens: np.ndarray) -> Limits:
        """What the rows ``asked`` for [n] int64 were drawn from, to be told with the ``tokens`` [S] that were."""
        count = len(rows.logits)
        scales, leasts, ends = np.ones(count, np.float32), np.full(count, -np.inf, np.float32), np.full(count, ALL, np.int64)
        some = self._picked(np.isin(self.at, asked))
        if len(some.at):
            least, end = np.empty(len(some.at), np.float32), np.empty(len(some.at), np.int64)
            with KERNELS:
                limits(rows.logits, rows.peaks, *some._filters(), least, end)
            scales[some.at], leasts[some.at], ends[some.at] = some.scales, least, end
        # Where the sums of draw and limits are rounded apart, what was drawn is within the limit.
        drawn = rows.logits[np.arange(count), tokens]
        behind = (drawn < leasts) | ((drawn == leasts) & (tokens >= ends))
        leasts[behind], ends[behind] = drawn[behind], tokens[behind] + 1
        return Limits(scales[asked], leasts[asked], ends[asked])

    def _picked(self, wanted: np.ndarray) -> Draws:
        """Some of them, by [n] bool."""
        return Draws(*(getattr(self, one.name)[wanted] for one in fields(self)))

    def _filters(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        return self.at, self.tops, self.scales, self.floors, self.ks, self.ps


def _floors(tops: np.ndarray, temperatures: np.ndarray, ratios: np.ndarray) -> np.ndarray:
    """[n] float32: the least logits with at least these ratios to the likeliest token's probability."""
    with np.errstate(divide="ignore", over="ignore"):  # the largest float32 has no next one
        exact = tops + temperatures * np.log(ratios)
        floors = exact.astype(np.float32)
        return np.where(floors < exact, np.nextafter(floors, np.float32(np.inf)), floors)
