"""One layer of a decoder, and how its tensors are read."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from mqlab.model.architecture import Architecture
from mqlab.model.attention import AttentionRule
from mqlab.model.layers import LayerNorm, Linear, Mlp, Norm, RmsNorm, activation
from mqlab.model.weights import TensorSource


@dataclass(frozen=True)
class Block:
    """One layer: queries, keys and values in one product, gate and up in another."""

    attention_norm: Norm
    qkv: Linear
    q_norm: Norm | None
    k_norm: Norm | None
    rule: AttentionRule
    out: Linear
    after_attention: Norm | None
    mlp_norm: Norm
    mlp: Mlp
    after_mlp: Norm | None


def read_block(arch: Architecture, source: TensorSource, layer: int) -> Block:
    """One layer's tensors.

    Raises:
        ModelError: one is missing or of another shape than ``arch`` calls for.
    """
    names, q = arch.family.names, arch.heads * arch.head_dim
    at = names.layer.format(layer)
    up = dict.fromkeys([at + name for name in names.up], arch.intermediate)
    mlp = Mlp(
        up=_read_linear(source, up, arch.hidden, arch.mlp_bias),
        down=_read_linear(source, {at + names.down: arch.hidden}, arch.intermediate, arch.mlp_bias),
        activation=activation(arch.activation),
        gated=len(up) == 2,
    )
    return Block(
        attention_norm=read_norm(arch, source, at + names.attention_norm, arch.hidden),
        qkv=_read_qkv(arch, source, [at + name for name in names.qkv]),
        q_norm=read_norm(arch, source, f"{at}self_attn.q_norm", arch.head_dim) if arch.family.qk_norm else None,
        k_norm=read_norm(arch, source, f"{at}self_attn.k_norm", arch.head_dim) if arch.family.qk_norm else None,
        rule=AttentionRule(heads=arch.heads, scale=arch.scale, softcap=arch.softcap, window=arch.windows[layer]),
        out=_read_linear(source, {at + names.out: arch.hidden}, q, arch.out_bias),
        after_attention=read_norm(arch, source, at + names.after_attention, arch.hidden) if names.after_attention else None,
        mlp_norm=read_norm(arch, source, at + names.mlp_norm, arch.hidden),
        mlp=mlp,
        after_mlp=read_norm(arch, source, at + names.after_mlp, arch.hidden) if names.after_mlp else None,
    )


def read_norm(arch: Architecture, source: TensorSource, name: str, size: int) -> Norm:
    """A norm of the family's kind, in float32 whatever the run's dtype."""
    weight = source.read(f"{name}.weight", size).float()
    if arch.family.norm == "layer":
        return LayerNorm(weight, source.read(f"{name}.bias", size).float(), arch.norm_eps)
    return RmsNorm(weight + 1 if arch.family.norm == "rms_plus_one" else weight, arch.norm_eps)


def _read_linear(source: TensorSource, outputs: dict[str, int], inputs: int, bias: bool) -> Linear:
    """Several projections of the same input, by name and size, as one product."""
    weight = torch.cat([source.read(f"{name}.weight", size, inputs) for name, size in outputs.items()])
    return Linear(weight, torch.cat([source.read(f"{name}.bias", size) for name, size in outputs.items()]) if bias else None)


def _read_qkv(arch: Architecture, source: TensorSource, names: list[str]) -> Linear:
    q, kv = arch.heads * arch.head_dim, arch.kv_heads * arch.head_dim
    if len(names) == 3:
        return _read_linear(source, dict(zip(names, (q, kv, kv), strict=True)), arch.hidden, arch.qkv_bias)
    weight = source.read(f"{names[0]}.weight", q + 2 * kv, arch.hidden)
    bias = source.read(f"{names[0]}.bias", q + 2 * kv) if arch.qkv_bias else None
    return Linear(_by_kind(weight, arch.heads), None if bias is None else _by_kind(bias, arch.heads))


def _by_kind(rows: Tensor, heads: int) -> Tensor:
    """Rows stored head by head, each head's query, key and value together, with all queries first, then keys, then values."""
    return rows.unflatten(0, (heads, 3, -1)).transpose(0, 1).flatten(0, 2)
