"""One layer of a decoder, and how its tensors are read."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from mqlab.model.architecture import Architecture
from mqlab.model.attention import AttentionRule
from mqlab.model.layers import LayerNorm, Mlp, Norm, Product, RmsNorm, activation
from mqlab.model.making import PLAIN, Group, Making
from mqlab.model.parallel.shares import rows, share_of, width
from mqlab.model.weights import TensorSource


@dataclass(frozen=True)
class Block:
    """One layer: queries, keys and values in one product, gate and up in another."""

    attention_norm: Norm
    qkv: Product
    q_norm: Norm | None
    k_norm: Norm | None
    rule: AttentionRule
    out: Product
    after_attention: Norm | None
    mlp_norm: Norm
    mlp: Mlp
    after_mlp: Norm | None


def read_block(arch: Architecture, source: TensorSource, layer: int, making: Making = PLAIN) -> Block:
    """One layer's tensors, made into what ``making`` says: this rank's share of them.

    Args:
        arch: the whole model's.

    Raises:
        ModelError: one is missing or of another shape than ``arch`` calls for. ConfigError: the ranks are too many.
    """
    names, share = arch.family.names, share_of(arch, making.group)
    queries = rows(share.heads, arch.head_dim)
    at = names.layer.format(layer)
    return Block(
        attention_norm=read_norm(arch, source, at + names.attention_norm, arch.hidden),
        qkv=_read_qkv(making, arch, source, [at + name for name in names.qkv]),
        q_norm=read_norm(arch, source, f"{at}self_attn.q_norm", arch.head_dim) if arch.family.qk_norm else None,
        k_norm=read_norm(arch, source, f"{at}self_attn.k_norm", arch.head_dim) if arch.family.qk_norm else None,
        rule=AttentionRule(heads=width(share.heads), scale=arch.scale, softcap=arch.softcap, window=arch.windows[layer]),
        out=_read_summed(making, source, at + names.out, (arch.hidden, arch.heads * arch.head_dim), queries, arch.out_bias),
        after_attention=read_norm(arch, source, at + names.after_attention, arch.hidden) if names.after_attention else None,
        mlp_norm=read_norm(arch, source, at + names.mlp_norm, arch.hidden),
        mlp=_read_mlp(making, arch, source, at),
        after_mlp=read_norm(arch, source, at + names.after_mlp, arch.hidden) if names.after_mlp else None,
    )


def read_norm(arch: Architecture, source: TensorSource, name: str, size: int) -> Norm:
    """A norm of the family's kind, in float32 whatever the run's dtype."""
    weight = source.read(f"{name}.weight", size).float()
    if arch.family.norm == "layer":
        return LayerNorm(weight, source.read(f"{name}.bias", size).float(), arch.norm_eps)
    return RmsNorm(weight + 1 if arch.family.norm == "rms_plus_one" else weight, arch.norm_eps)


def _read_mlp(making: Making, arch: Architecture, source: TensorSource, at: str) -> Mlp:
    names, inner = arch.family.names, share_of(arch, making.group).inner
    up = [Part(at + name, arch.intermediate, inner) for name in names.up]
    return Mlp(
        up=_read_linear(making, source, up, arch.hidden, arch.mlp_bias),
        down=_read_summed(making, source, at + names.down, (arch.hidden, arch.intermediate), inner, arch.mlp_bias),
        activation=activation(arch.activation),
        gated=len(up) == 2,
    )


@dataclass(frozen=True)
class Part:
    """A projection, its outputs, and which of them are this rank's."""

    name: str
    outputs: int
    own: slice


def _read_linear(making: Making, source: TensorSource, parts: list[Part], inputs: int, bias: bool) -> Product:
    """Several projections of the same input as one product, each with its own outputs only: [M, K] -> [M, all of them]."""
    weight = torch.cat([source.read(f"{part.name}.weight", part.outputs, inputs)[part.own] for part in parts])
    return making.product(weight, torch.cat([source.read(f"{part.name}.bias", part.outputs)[part.own] for part in parts]) if bias else None)


def _read_summed(making: Making, source: TensorSource, name: str, shape: tuple[int, int], own: slice, bias: bool) -> Product:
    """A projection of which each rank has the inputs that are its own: the ranks' products are summed, the bias is rank 0's."""
    weight = source.read(f"{name}.weight", *shape)[:, own].contiguous()
    added = source.read(f"{name}.bias", shape[0]) if bias and making.group.rank == 0 else None
    product = making.product(weight, added)
    return product if making.group.size == 1 else Summed(product, making.group)


@dataclass(frozen=True)
class Summed:
    """A product whose inputs lie on several ranks."""

    product: Product
    group: Group

    def __call__(self, x: Tensor) -> Tensor:
        """[M, this rank's K] -> [M, N], the same on all ranks."""
        return self.group.all_reduce(self.product(x))


def _read_qkv(making: Making, arch: Architecture, source: TensorSource, names: list[str]) -> Product:
    share, q, kv = share_of(arch, making.group), arch.heads * arch.head_dim, arch.kv_heads * arch.head_dim
    own = [rows(part, arch.head_dim) for part in (share.heads, share.kv_heads, share.kv_heads)]
    if len(names) == 3:
        parts = [Part(*part) for part in zip(names, (q, kv, kv), own, strict=True)]
        return _read_linear(making, source, parts, arch.hidden, arch.qkv_bias)
    weight = source.read(f"{names[0]}.weight", q + 2 * kv, arch.hidden)
    bias = source.read(f"{names[0]}.bias", q + 2 * kv) if arch.qkv_bias else None
    return making.product(_by_kind(weight, arch.heads, own), None if bias is None else _by_kind(bias, arch.heads, own))


def _by_kind(stored: Tensor, heads: int, own: list[slice]) -> Tensor:
    """Rows stored head by head, each head's query, key and value together, as all queries, all keys, all values: those that are ``own``."""
    kinds = stored.unflatten(0, (heads, 3, -1)).transpose(0, 1).flatten(1, 2)
    return torch.cat([kind[part] for kind, part in zip(kinds, own, strict=True)])
