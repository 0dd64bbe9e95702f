"""The project's Triton kernels."""

from __future__ import annotations

from mqlab_kernels import interpreter
from mqlab_kernels.add_rms_norm import add_rms_norm
from mqlab_kernels.advance import advance
from mqlab_kernels.gated import gated
from mqlab_kernels.paged_decode import paged_decode
from mqlab_kernels.prefill_attention import prefill_attention
from mqlab_kernels.qkv_rope_cache import qkv_rope_cache
from torch import Tensor
from triton import knobs

from mqlab.model.accel.backends.operations import Backend, Decodes, Prefills
from mqlab.model.attention import AttentionRule


def backend() -> Backend:
    """Fused kernels, and attention that reads the cache where it lies."""
    if knobs.runtime.interpret:
        interpreter.patch()
    return Backend(
        name="triton",
        qkv_rope_cache=qkv_rope_cache,
        decode=_decode,
        prefill=_prefill,
        add_rms_norm=add_rms_norm,
        gated=gated,
        advance=advance,
    )


def _decode(q: Tensor, keys: Tensor, values: Tensor, decodes: Decodes, rule: AttentionRule) -> Tensor:
    tables, contexts = decodes.tables, decodes.contexts
    return paged_decode(q, keys, values, tables, contexts, scale=rule.scale, window=rule.window, softcap=rule.softcap)


def _prefill(q: Tensor, keys: Tensor, values: Tensor, prefills: Prefills, rule: AttentionRule) -> Tensor:
    tables, starts, contexts, longest = prefills.tables, prefills.starts, prefills.contexts, max(prefills.lengths)
    rules = {"scale": rule.scale, "window": rule.window, "softcap": rule.softcap}
    return prefill_attention(q, keys, values, tables, starts, contexts, max_query=longest, **rules)
