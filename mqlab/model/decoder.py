"""One decoder for all Llama-shaped models, driven by its Architecture."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from mqlab.bars import progress_bar
from mqlab.model.architecture import Architecture
from mqlab.model.attention import Attention
from mqlab.model.batch import BatchTensors
from mqlab.model.kv import LayerCache
from mqlab.model.layers import Linear, gated_silu, rms_norm
from mqlab.model.rope import rope_tables
from mqlab.model.weights import Weights


@dataclass(frozen=True)
class Block:
    """One layer: queries, keys and values in one product, gate and up in another."""

    attention_norm: Tensor
    qkv: Linear
    out: Linear
    mlp_norm: Tensor
    gate_up: Linear
    down: Linear
    q_norm: Tensor | None
    k_norm: Tensor | None


class Decoder:
    """Weights and forward pass.

    Args:
        arch: shape.
        weights: read once, packed, and not kept.
        max_len: positions that are needed.

    Raises:
        ModelError: a tensor is missing or of another shape than ``arch`` calls for.
    """

    def __init__(self, arch: Architecture, weights: Weights, max_len: int) -> None:
        self.arch = arch
        embedding = weights.read("model.embed_tokens.weight", arch.vocab, arch.hidden)
        self._embedding = embedding
        progress = progress_bar("loading weights", iterable=range(arch.layers), unit="layer")
        self._blocks = [_read_block(arch, weights, layer) for layer in progress]
        self._norm = weights.read("model.norm.weight", arch.hidden).float()
        self._head = Linear(embedding if arch.tied else weights.read("lm_head.weight", arch.vocab, arch.hidden))
        self._cos, self._sin = rope_tables(arch.rope, arch.head_dim, max_len)

    def logits(self, batch: BatchTensors, cache: list[LayerCache]) -> Tensor:
        """Run one step: writes its keys and values into the cache. Returns [S, vocab] float32, a row for each sampled token."""
        attention = Attention(batch, self._cos, self._sin, self.arch.heads, cache[0].keys.shape[2])
        x = F.embedding(batch.tokens, self._embedding).float()
        for block, layer in zip(self._blocks, cache, strict=True):
            x = self._run_block(block, x, attention, layer)
        return self._head(rms_norm(x[batch.logit_rows], self._norm, self.arch.norm_eps))

    def _run_block(self, block: Block, x: Tensor, attention: Attention, cache: LayerCache) -> Tensor:
        eps = self.arch.norm_eps
        qkv = block.qkv(rms_norm(x, block.attention_norm, eps))
        if block.q_norm is not None and block.k_norm is not None:
            self._normalise_heads(qkv, block.q_norm, block.k_norm)
        x = x + block.out(attention(qkv, cache))
        return x.add_(block.down(gated_silu(block.gate_up(rms_norm(x, block.mlp_norm, eps)))))

    def _normalise_heads(self, qkv: Tensor, q_norm: Tensor, k_norm: Tensor) -> None:
        """Qwen3: each query and key head by itself, in place."""
        heads = qkv.unflatten(1, (-1, self.arch.head_dim))
        q, k = heads.split([self.arch.heads, self.arch.kv_heads, self.arch.kv_heads], dim=1)[:2]
        q.copy_(rms_norm(q, q_norm, self.arch.norm_eps))
        k.copy_(rms_norm(k, k_norm, self.arch.norm_eps))


def _read_block(arch: Architecture, weights: Weights, layer: int) -> Block:
    at = f"model.layers.{layer}."
    q, kv = arch.heads * arch.head_dim, arch.kv_heads * arch.head_dim

    def norm(name: str, size: int) -> Tensor:
        return weights.read(f"{at}{name}.weight", size).float()

    return Block(
        attention_norm=norm("input_layernorm", arch.hidden),
        qkv=_fused(weights, f"{at}self_attn.", {"q_proj": q, "k_proj": kv, "v_proj": kv}, arch.hidden, arch.qkv_bias),
        out=_fused(weights, f"{at}self_attn.", {"o_proj": arch.hidden}, q, arch.out_bias),
        mlp_norm=norm("post_attention_layernorm", arch.hidden),
        gate_up=_fused(weights, f"{at}mlp.", {"gate_proj": arch.intermediate, "up_proj": arch.intermediate}, arch.hidden, arch.mlp_bias),
        down=_fused(weights, f"{at}mlp.", {"down_proj": arch.hidden}, arch.intermediate, arch.mlp_bias),
        q_norm=norm("self_attn.q_norm", arch.head_dim) if arch.qk_norm else None,
        k_norm=norm("self_attn.k_norm", arch.head_dim) if arch.qk_norm else None,
    )


def _fused(weights: Weights, prefix: str, outputs: dict[str, int], inputs: int, bias: bool) -> Linear:
    """Several projections of the same input as one product."""
    weight = torch.cat([weights.read(f"{prefix}{name}.weight", size, inputs) for name, size in outputs.items()])
    joined = torch.cat([weights.read(f"{prefix}{name}.bias", size) for name, size in outputs.items()]) if bias else None
    return Linear(weight, joined)
