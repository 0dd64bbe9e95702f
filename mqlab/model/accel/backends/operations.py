"""The operations of a device decoder that are not products of matrices, as every backend offers them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from mqlab.model.attention import AttentionRule


@dataclass(frozen=True)
class Decodes:
    """Chunks of one token each.

    Attributes:
        tables: [S, blocks] int32, physical blocks in order; what lies behind a context is any block of the pool.
        contexts: [S] int32, length of each sequence, the token included; 0 for a row that only fills a graph.
    """

    tables: Tensor
    contexts: Tensor


@dataclass(frozen=True)
class Prefills:
    """Chunks of any length.

    Attributes:
        tables: [C, blocks] int32, as above.
        contexts: [C] int32, length of each sequence after the step.
        starts: [C + 1] int32, where each begins among the tokens of these chunks.
        lengths: of the chunks, as the host knows them.
        ends: the contexts, likewise.
    """

    tables: Tensor
    contexts: Tensor
    starts: Tensor
    lengths: tuple[int, ...]
    ends: tuple[int, ...]


class QkvRopeCache(Protocol):
    """Normalise and rotate queries and keys, store keys and values."""

    def __call__(
        self,
        qkv: Tensor,
        cos: Tensor,
        sin: Tensor,
        positions: Tensor,
        slots: Tensor,
        keys: Tensor,
        values: Tensor,
        *,
        heads: int,
        q_norm: Tensor | None = None,
        k_norm: Tensor | None = None,
        eps: float = 0.0,
    ) -> Tensor:
        """The queries.

        Args:
            qkv: [T, (heads + 2 KV heads) D].
            cos: [positions, R / 2] float32; ``sin`` likewise. Dimensions i and i + R / 2 of a head are a pair.
            positions: [T] int64.
            slots: [T] int64, block * block size + offset; -1 stores nothing that anybody reads.
            keys: [blocks, KV heads, block size, D], written; ``values`` likewise.
            q_norm: [D] float32, weights of an RMS norm of each query head; ``k_norm`` of each key head.

        Returns:
            [T, heads, D].
        """
        ...


@dataclass(frozen=True)
class Backend:
    """Kernels of one kind, for tensors of one device. All may be captured in a CUDA graph but ``prefill``.

    Attributes:
        name: of EngineConfig.attention_backend.
        qkv_rope_cache: see there.
        decode: queries [S, H, D], keys, values, ``Decodes`` and the layer's rule -> [S, H, D]; zeros where the context is 0.
        prefill: queries [T, H, D], keys, values, ``Prefills`` and the rule -> [T, H, D].
        add_rms_norm: x [M, N], residual [M, N] or None, weight [N] float32, eps -> [M, N]: x is added to the residual in place, and the
            norm of the sum returned; without a residual, that of x.
        gated: raised [M, 2 I] and a value of ACTIVATIONS -> [M, I]: the function of the first half, times the second.
        advance: sampled, tokens, positions, slots [S] int64, contexts [S] int32, indices [S] int64, tables [S, blocks] int32, block size:
            the inputs of a decode step become those of the next one, in place; rows with slot -1 stay.
    """

    name: str
    qkv_rope_cache: QkvRopeCache
    decode: Callable[[Tensor, Tensor, Tensor, Decodes, AttentionRule], Tensor]
    prefill: Callable[[Tensor, Tensor, Tensor, Prefills, AttentionRule], Tensor]
    add_rms_norm: Callable[[Tensor, Tensor | None, Tensor, float], Tensor]
    gated: Callable[[Tensor, str], Tensor]
    advance: Callable[[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, int], None]
