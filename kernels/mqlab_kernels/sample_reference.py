"""The sampler of sample.py in plain float64 torch, for any device: every row is sorted and every weight computed."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import count

import torch
import torch.nn.functional as F
from torch import Tensor

MASKED = -1
"""In place of a token: the largest logit is -inf."""
NOT_A_NUMBER = -2
"""In place of a token: a logit is not a number."""
INFINITE = -3
"""In place of a token: the largest logit is inf."""

_BLOCK = 64
_GOLDEN, _MIX_1, _MIX_2 = (number - 2**64 for number in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))


def sample_reference(
    logits: Tensor, temperatures: Tensor, top_ks: Tensor, top_ps: Tensor | None, min_ps: Tensor, seeds: Tensor, indices: Tensor
) -> Tensor:
    """What ``sample`` does, with its arguments.

    Args:
        top_ps: None where all are 1; otherwise the device is asked after each race which rows must run another.
    """
    tops, tokens = logits.max(-1)
    tokens = torch.where(tops == -torch.inf, MASKED, torch.where(tops == torch.inf, INFINITE, tokens))
    tokens = torch.where(tops.isnan(), NOT_A_NUMBER, tokens)
    racing = tops.isfinite() & (temperatures > 0)
    temperatures = torch.where(racing, temperatures, 1.0).double()
    rows = _Rows.of(logits, tops.double(), temperatures, _noise_keys(seeds, indices))
    kept = rows.kept(tops.double() + temperatures * min_ps.double().log(), top_ks)
    winners = rows.race(kept, 0)
    tokens = torch.where(racing, winners, tokens)
    if top_ps is None:
        return tokens
    shares, racing = top_ps.double() * rows.before(kept), racing & (top_ps < 1)
    for attempt in count(1):
        kept = rows.rank(winners)
        racing &= (rows.before(kept) >= shares) & (kept > 0)
        if not racing.any():
            break
        winners = rows.race(kept, attempt)
        tokens = torch.where(racing, winners, tokens)
    return tokens


@dataclass(frozen=True)
class _Rows:
    """S rows that race.

    Attributes:
        logits: [S, vocab].
        keys: [S] int64, of their noise.
        weights: [S, vocab] float64.
        ranks: [S, vocab] int64, of tokens in descending order of logits, ties in ascending order of ids. Filters keep the first few.
        sums: [S, vocab + 1] float64, weights of as many of the first.
    """

    logits: Tensor
    keys: Tensor
    weights: Tensor
    ranks: Tensor
    sums: Tensor

    @staticmethod
    def of(logits: Tensor, tops: Tensor, temperatures: Tensor, keys: Tensor) -> _Rows:
        """``temperatures`` [S] float64; a temperature's inverse is rounded to float32, as everywhere."""
        scales = (1 / temperatures).float().double()
        weights = ((logits.double() - tops[:, None]) * scales[:, None]).exp().nan_to_num(0.0)
        order = logits.argsort(stable=True, dim=-1, descending=True)
        numbers = torch.arange(logits.shape[1], device=logits.device).expand_as(order)
        ranks = torch.empty_like(order).scatter_(1, order, numbers)
        return _Rows(logits, keys, weights, ranks, F.pad(weights.gather(1, order).cumsum(-1), (1, 0)))

    def kept(self, floors: Tensor, ks: Tensor) -> Tensor:
        """[S] int64: how many tokens min_p, as the least logits [S] float64, and top_k keep."""
        counts = (self.logits >= floors[:, None]).sum(-1)
        return torch.where(ks > 0, counts.minimum(ks.long()), counts)

    def rank(self, tokens: Tensor) -> Tensor:
        """[S] int64 of each."""
        return self.ranks.gather(1, tokens[:, None])[:, 0]

    def before(self, ranks: Tensor) -> Tensor:
        """[S] float64: weights of the tokens of lower ranks than these."""
        return self.sums.gather(1, ranks[:, None])[:, 0]

    def race(self, kept: Tensor, attempt: int) -> Tensor:
        """[S] int64: the winners among the tokens of these many first ranks: of a race of blocks, then of one in the block that won."""
        weights = torch.where(self.ranks < kept[:, None], self.weights, 0.0)
        weights = F.pad(weights, (0, -weights.shape[1] % _BLOCK)).unflatten(1, (-1, _BLOCK))
        numbers = torch.arange(weights.shape[1], device=weights.device)[None]
        blocks = (self._noise(attempt * 2**34 + 2**33 + numbers) / weights.sum(-1)).argmin(-1, keepdim=True)
        tokens = blocks * _BLOCK + torch.arange(_BLOCK, device=weights.device)
        own = weights.take_along_dim(blocks[:, :, None], 1)[:, 0]
        return tokens.gather(1, (self._noise(attempt * 2**34 + tokens) / own).argmin(-1, keepdim=True))[:, 0]

    def _noise(self, counters: Tensor) -> Tensor:
        """-ln(u) of [1 or S, n] counters: [S, n] float64."""
        x = _mix(self.keys[:, None] + (counters + 1) * _GOLDEN)
        return -((_shifted(x, 11).double() + 0.5) * 2.0**-53).log()


def _noise_keys(seeds: Tensor, indices: Tensor) -> Tensor:
    return _mix((_mix(seeds + _GOLDEN) ^ indices) + _GOLDEN)


def _mix(x: Tensor) -> Tensor:
    """SplitMix64's finaliser of the bits of a uint64; int64 products wrap."""
    x = (x ^ _shifted(x, 30)) * _MIX_1
    x = (x ^ _shifted(x, 27)) * _MIX_2
    return x ^ _shifted(x, 31)


def _shifted(x: Tensor, by: int) -> Tensor:
    """To the right, as an unsigned number."""
    return (x >> by) & (2 ** (64 - by) - 1)
