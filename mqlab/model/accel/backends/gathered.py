"""Paged attention in plain torch: the keys and values of a sequence are gathered, and attended to as any others."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from mqlab.model.accel.backends.operations import Decodes, Prefills
from mqlab.model.attention import AttentionRule

_QUERIES = 256
"""Tokens of a chunk whose scores are held at once: those of a long one over a long context would take gigabytes."""

Attend = Callable[[Tensor, Tensor, Tensor, Tensor, AttentionRule], Tensor]
"""Queries [S, KV heads, R, D], keys [S, KV heads, L, D], values, which of the keys each sees [S, 1, R or 1, L] bool, and the rule ->
[S, KV heads, R, D]; zeros where none is seen. R are all rows that share keys: the heads of a group, and the tokens of a chunk."""


@dataclass(frozen=True)
class Gathered:
    """Attention over gathered keys and values.

    Attributes:
        attend: what computes it once they are gathered.
    """

    attend: Attend

    def decode(self, q: Tensor, keys: Tensor, values: Tensor, decodes: Decodes, rule: AttentionRule) -> Tensor:
        """As ``Backend`` says. No shape depends on what a tensor holds, so that a graph may hold it."""
        ends = decodes.contexts[:, None]
        at = torch.arange(decodes.tables.shape[1] * keys.shape[2], device=q.device)
        seen = at < ends
        if rule.window:
            seen = seen & (at >= ends - rule.window)
        # What was never written may be no number, and 0 times that is none either.
        k, v = (_gather(pool, decodes.tables).masked_fill_(~seen[:, None, :, None], 0) for pool in (keys, values))
        groups = q.unflatten(1, (keys.shape[1], -1))
        return self.attend(groups, k, v, seen[:, None, None], rule).flatten(1, 2)

    def prefill(self, q: Tensor, keys: Tensor, values: Tensor, prefills: Prefills, rule: AttentionRule) -> Tensor:
        """As ``Backend`` says, chunk by chunk."""
        parts = q.split(prefills.lengths)
        return torch.cat([self._chunk(part, keys, values, prefills, row, rule) for row, part in enumerate(parts)])

    def _chunk(self, q: Tensor, keys: Tensor, values: Tensor, prefills: Prefills, row: int, rule: AttentionRule) -> Tensor:
        end, block_size = prefills.ends[row], keys.shape[2]
        table = prefills.tables[row : row + 1, : -(-end // block_size)]
        k, v = (_gather(pool, table)[:, :, :end] for pool in (keys, values))
        starts = range(end - len(q), end, _QUERIES)
        return torch.cat([self._tokens(part, k, v, start, rule) for start, part in zip(starts, q.split(_QUERIES), strict=True)])

    def _tokens(self, q: Tensor, keys: Tensor, values: Tensor, start: int, rule: AttentionRule) -> Tensor:
        """[n, H, D], tokens from position ``start`` on, over [1, KV heads, L, D] -> [n, H, D]."""
        count, kv_heads = len(q), keys.shape[1]
        end = start + count
        first = max(0, start + 1 - rule.window) if rule.window else 0
        places, at = torch.arange(start, end, device=q.device)[:, None], torch.arange(first, end, device=q.device)
        seen = at <= places
        if rule.window:
            seen = seen & (at > places - rule.window)
        groups = q.unflatten(1, (kv_heads, -1))  # [n, KV heads, G, D]
        size = groups.shape[2]
        rows = groups.permute(1, 2, 0, 3).flatten(1, 2)[None]  # [1, KV heads, G n, D]
        out = self.attend(rows, keys[:, :, first:end], values[:, :, first:end], seen.repeat(size, 1)[None, None], rule)[0]
        return out.unflatten(1, (size, count)).permute(2, 0, 1, 3).flatten(1, 2)


def attend(q: Tensor, keys: Tensor, values: Tensor, seen: Tensor, rule: AttentionRule) -> Tensor:
    """``Attend`` in float32, written out: the reference."""
    scores = (q.float() @ keys.float().mT).mul_(rule.scale)
    if rule.softcap:
        scores.div_(rule.softcap).tanh_().mul_(rule.softcap)
    weights = scores.masked_fill_(~seen, -torch.inf).softmax(-1).masked_fill(~seen, 0)  # a row that sees nothing is no number
    return (weights @ values.float()).to(q.dtype)


def _gather(pool: Tensor, tables: Tensor) -> Tensor:
    """[blocks, KV heads, B, D] by [S, W] -> [S, KV heads, W B, D]."""
    blocks = pool.index_select(0, tables.flatten()).unflatten(0, tables.shape)
    return blocks.transpose(1, 2).flatten(2, 3)
