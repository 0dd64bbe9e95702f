"""Attention by torch's own scaled_dot_product_attention, over gathered keys and values."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from mqlab.model.accel.backends import gathered
from mqlab.model.attention import AttentionRule


def attend(q: Tensor, keys: Tensor, values: Tensor, seen: Tensor, rule: AttentionRule) -> Tensor:
    """``Attend``; with a soft cap, which torch's attention lacks, the reference."""
    if rule.softcap:
        return gathered.attend(q, keys, values, seen, rule)
    out = F.scaled_dot_product_attention(q, keys, values, attn_mask=seen, scale=rule.scale)
    # What a row gives that sees nothing differs between torch's kernels.
    return out.masked_fill(~seen.any(-1, keepdim=True), 0)
