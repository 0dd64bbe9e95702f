"""One decoder for all families, driven by an Architecture."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from mqlab.bars import progress_bar
from mqlab.model.architecture import Architecture
from mqlab.model.attention import Attention
from mqlab.model.batch import BatchTensors
from mqlab.model.blocks import Block, read_block, read_norm
from mqlab.model.embedding import read_ends
from mqlab.model.kv import LayerCache
from mqlab.model.layers import Linear, soft_cap
from mqlab.model.making import ALONE, Group, Making
from mqlab.model.parallel.shares import local, vocab_widths
from mqlab.model.rope_tables import rope_tables
from mqlab.model.weights import TensorSource


class Decoder:
    """Weights and forward pass; a ``Forward``.

    Args:
        arch: shape of the whole model.
        source: tensors, read once, packed, and not kept.
        max_len: positions that are needed.
        group: the ranks that each hold a share, of which this decoder is one.

    Raises:
        ModelError: a tensor is missing or of another shape than ``arch`` calls for. ConfigError: the ranks are too many.

    Attributes:
        arch: shape of what this rank holds.
    """

    def __init__(self, arch: Architecture, source: TensorSource, max_len: int, group: Group = ALONE) -> None:
        making = Making(group=group)
        self.arch = local(arch, group)
        self._group, self._vocab_widths = group, vocab_widths(arch, group)
        self._embedding, head = read_ends(arch, source, making)
        self._head = Linear(head)
        del head  # packed; where it is not the embedding, layers are read into the memory that it leaves
        self._embedding_scale = embedding_scale(arch, self._embedding.dtype)
        # Closed in so many words: an error in the list keeps the bar, whose line whatever is written next would go on.
        with progress_bar("loading weights", iterable=range(arch.layers), unit="layer") as layers:
            self._blocks = [read_block(arch, source, layer, making) for layer in layers]
        self._norm = read_norm(arch, source, arch.family.names.norm, arch.hidden)
        self._cos, self._sin = rope_tables(arch.rope, arch.rotary_dim, max_len)

    def states(self, batch: BatchTensors, cache: list[LayerCache]) -> Tensor:
        """Run one step: writes its keys and values into the cache. Returns [T, hidden] float32, after the last norm."""
        attention = Attention(batch, self._cos, self._sin, cache[0].keys.shape[2])
        x = F.embedding(batch.tokens, self._embedding).float()
        if self._embedding_scale != 1:
            x.mul_(self._embedding_scale)
        for block, layer in zip(self._blocks, cache, strict=True):
            x = self._run_block(block, x, attention, layer)
        return self._norm(x)

    def logits(self, states: Tensor) -> Tensor:
        """[R, hidden] float32, rows of ``states`` -> [R, vocab] float32."""
        logits = self._group.all_gather(self._head(states), self._vocab_widths)
        return soft_cap(logits, self.arch.final_softcap) if self.arch.final_softcap else logits

    def _run_block(self, block: Block, x: Tensor, attention: Attention, cache: LayerCache) -> Tensor:
        attended = block.out(attention(self._qkv(block, x), cache, block.rule))
        if block.after_attention is not None:
            attended = block.after_attention(attended)
        middle = x + attended
        raised = block.mlp(block.mlp_norm(x if self.arch.parallel else middle))
        if block.after_mlp is not None:
            raised = block.after_mlp(raised)
        return middle.add_(raised)

    def _qkv(self, block: Block, x: Tensor) -> Tensor:
        qkv = block.qkv(block.attention_norm(x))
        if block.q_norm is not None and block.k_norm is not None:
            heads = qkv.unflatten(1, (-1, self.arch.head_dim))
            q, k = heads.split([self.arch.heads, self.arch.kv_heads, self.arch.kv_heads], dim=1)[:2]
            q.copy_(block.q_norm(q))
            k.copy_(block.k_norm(k))
        return qkv


def embedding_scale(arch: Architecture, dtype: torch.dtype) -> float:
    """What token embeddings are multiplied by. Rounded as the weights are, since a bfloat16 model was trained with the rounded one
    (transformers #29402)."""
    return torch.tensor(arch.hidden**0.5, dtype=dtype).item() if arch.family.scaled_embedding else 1.0
