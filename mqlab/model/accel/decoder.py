"""One decoder for all families on a device, made of the same blocks as the CPU's."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from mqlab.bars import progress_bar
from mqlab.model.accel.backends.operations import Backend
from mqlab.model.accel.buffers import Batch
from mqlab.model.accel.products import DenseProduct
from mqlab.model.architecture import Architecture
from mqlab.model.blocks import Block, read_block, read_norm
from mqlab.model.decoder import embedding_scale
from mqlab.model.embedding import read_ends
from mqlab.model.families import ACTIVATIONS
from mqlab.model.kv import Pool
from mqlab.model.layers import Norm, RmsNorm, soft_cap
from mqlab.model.making import Making
from mqlab.model.parallel.shares import local, vocab_widths
from mqlab.model.rope_tables import rope_tables
from mqlab.model.weights import TensorSource


class DeviceDecoder:
    """Weights and forward pass. The residual stream has the run's dtype; norms are float32 inside. Every call only enqueues work.

    Args:
        arch: shape of the whole model.
        source: tensors on the device, read once.
        max_len: positions that are needed.
        backend: what computes.
        making: of what products, and which share of them.

    Raises:
        ModelError: a tensor is missing or of another shape than ``arch`` calls for. ConfigError: the ranks are too many.

    Attributes:
        arch: shape of what this rank holds.
        backend: what computes.
        group: the ranks that hold the others.
    """

    def __init__(self, arch: Architecture, source: TensorSource, max_len: int, backend: Backend, making: Making) -> None:
        self.arch = local(arch, making.group)
        self.backend = backend
        self.group = making.group
        self._vocab_widths = vocab_widths(arch, making.group)
        self._embedding, head = read_ends(arch, source, making)
        self._head = DenseProduct(head)
        self._embedding_scale = embedding_scale(arch, self._embedding.dtype)
        # Closed in so many words: an error in the list keeps the bar, whose line whatever is written next would go on.
        with progress_bar("loading weights", iterable=range(arch.layers), unit="layer") as layers:
            self._blocks = [read_block(arch, source, layer, making) for layer in layers]
        self._norm = read_norm(arch, source, arch.family.names.norm, arch.hidden)
        self._rope = tuple(table.to(self._embedding.device) for table in rope_tables(arch.rope, arch.rotary_dim, max_len))
        self._activation = ACTIVATIONS[arch.activation]

    def states(self, batch: Batch, cache: list[Pool]) -> Tensor:
        """Run one step: writes its keys and values into the cache. Returns [T, hidden] of the run's dtype, after the last norm."""
        residual = F.embedding(batch.tokens, self._embedding)
        if self._embedding_scale != 1:
            residual = residual * self._embedding_scale
        added: Tensor | None = None
        for block, pool in zip(self._blocks, cache, strict=True):
            added = self._run_block(block, added, residual, batch, pool)
        return self._normed(self._norm, added, residual)

    def logits(self, states: Tensor, out: Tensor | None = None) -> Tensor:
        """[R, hidden], rows of ``states`` -> [R, vocab] float32, written to ``out`` where there is one."""
        raised = self.group.all_gather(self._head(states), self._vocab_widths)
        logits = raised.float() if out is None else out.copy_(raised)
        return soft_cap(logits, self.arch.final_softcap) if self.arch.final_softcap else logits

    def _run_block(self, block: Block, added: Tensor | None, residual: Tensor, batch: Batch, pool: Pool) -> Tensor:
        """What is to be added to the residual stream; ``added`` is what the layer before left to be."""
        entered = self._normed(block.attention_norm, added, residual)
        attended = block.out(self._attend(block, block.qkv(entered), batch, pool))
        if block.after_attention is not None:
            attended = self._normed(block.after_attention, None, attended)
        if self.arch.parallel:
            return attended.add_(self._mlp(block, self._normed(block.mlp_norm, None, residual)))
        raised = self._mlp(block, self._normed(block.mlp_norm, attended, residual))
        return raised if block.after_mlp is None else self._normed(block.after_mlp, None, raised)

    def _attend(self, block: Block, qkv: Tensor, batch: Batch, pool: Pool) -> Tensor:
        """[T, (H + 2 KV heads) D] -> [T, H D]."""
        norms = {}
        if block.q_norm is not None and block.k_norm is not None:
            norms = {"q_norm": block.q_norm.weight, "k_norm": block.k_norm.weight, "eps": block.q_norm.eps}
        cos, sin = self._rope
        rule, own = block.rule, batch.singles
        q = self.backend.qkv_rope_cache(qkv, cos, sin, batch.positions, batch.slots, pool.keys, pool.values, heads=rule.heads, **norms)
        parts = []
        if batch.decodes is not None:
            parts.append(self.backend.decode(q[:own], pool.keys, pool.values, batch.decodes, rule))
        if batch.prefills is not None:
            parts.append(self.backend.prefill(q[own:], pool.keys, pool.values, batch.prefills, rule))
        return (parts[0] if len(parts) == 1 else torch.cat(parts)).flatten(1)

    def _mlp(self, block: Block, x: Tensor) -> Tensor:
        raised = block.mlp.up(x)
        return block.mlp.down(self.backend.gated(raised, self._activation) if block.mlp.gated else block.mlp.activation(raised))

    def _normed(self, norm: Norm, x: Tensor | None, residual: Tensor) -> Tensor:
        """Add ``x``, where there is one, to the residual stream in place, and return the norm of that."""
        if isinstance(norm, RmsNorm):
            if x is None:
                return self.backend.add_rms_norm(residual, None, norm.weight, norm.eps)
            return self.backend.add_rms_norm(x, residual, norm.weight, norm.eps)
        if x is not None:
            residual.add_(x)
        return norm(residual.float()).to(residual.dtype)
