"""What a model of transformers asks of attention, found by running one token through it without weights."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.masking_utils import AttentionMaskInterface
from transformers.modeling_utils import AttentionInterface

from mqlab.errors import ModelError
from mqlab.model.attention import AttentionRule

PROBE = "mqlab_probe"
NO_INTERFACE = "its attention does not go through transformers' attention interface"
_HARMLESS = {"dropout", "position_ids", "use_cache", "is_causal", "sliding_window"}
"""Options of an attention call that change nothing here: the window is read off the mask."""


@dataclass(frozen=True)
class AttentionLayer:
    """One attention call of a forward pass: what it stores for each token, and how it attends."""

    kv_heads: int
    head_dim: int
    rule: AttentionRule


@dataclass
class _Probe:
    """What a pass has shown so far: each mask that was made with its window, each attention call, the width of the hidden states."""

    positions: int
    hidden: int = 0
    masks: list[tuple[Tensor, int]] = field(default_factory=list)
    layers: list[AttentionLayer] = field(default_factory=list)

    def window(self, mask: Tensor | None, is_causal: bool) -> int:
        if mask is None and is_causal:
            return 0
        for made, window in self.masks:
            if made is mask:
                return window
        raise ModelError("its attention uses a mask of the model's own")


_probe: ContextVar[_Probe] = ContextVar("probe")


def probe_layers(model: PreTrainedModel, body: nn.Module, positions: int) -> tuple[tuple[AttentionLayer, ...], int]:
    """The attention calls of one pass of ``body``, in order, and the width of the hidden states that it gives.

    Args:
        model: made on the meta device, its attention implementation set to PROBE.
        body: the part of it that gives hidden states.
        positions: the model's context.

    Raises:
        ModelError: the reason why this attention cannot be served from a paged cache.
    """
    probe = _run(body, _Probe(positions))
    layers = probe.layers
    if getattr(model, "_is_stateful", False):
        raise ModelError("it keeps a recurrent state besides keys and values")
    if not layers:
        raise ModelError(NO_INTERFACE)
    expected = getattr(model.config.get_text_config(decoder=True), "num_hidden_layers", 0)
    if len(layers) < expected:
        raise ModelError(f"only {len(layers)} of its {expected} layers are attention that goes through transformers' interface")
    return tuple(layers), probe.hidden


def _run(body: nn.Module, probe: _Probe) -> _Probe:
    token = _probe.set(probe)
    try:
        with torch.device("meta"), torch.inference_mode():
            one = torch.zeros(1, 1, dtype=torch.long)
            # The mask of ones says that nothing is padded; without one the library would look at the positions, which have no values here.
            output = body(input_ids=one, position_ids=one, attention_mask=torch.ones_like(one), use_cache=False, return_dict=True)
            probe.hidden = output.last_hidden_state.shape[-1]
    finally:
        _probe.reset(token)
    return probe


def _record_mask(*, q_length: int, kv_length: int, mask_function: Callable[..., Any], **_: Any) -> Tensor:
    """An empty mask that can be recognised in the attention calls it is given to."""
    probe = _probe.get()
    mask = torch.empty(1, 1, q_length, kv_length)
    with torch.device("cpu"):
        probe.masks.append((mask, _read_window(mask_function, probe.positions)))
    return mask


def _read_window(mask_function: Callable[..., Any], positions: int) -> int:
    seen = _seen(mask_function, positions - 1, positions)
    window = int(seen.sum())
    for query in {0, 1, window - 1, window, window + 1, positions // 2, positions - 1}:
        if 0 <= query < positions and not torch.equal(_seen(mask_function, query, positions), _causal(query, positions, window)):
            raise ModelError("its attention is neither causal nor causal within a sliding window")
    return 0 if window >= positions else window


def _seen(mask_function: Callable[..., Any], query: int, positions: int) -> Tensor:
    zero = torch.tensor(0)
    return torch.as_tensor(mask_function(zero, zero, torch.tensor(query), torch.arange(positions))).broadcast_to(positions)


def _causal(query: int, positions: int, window: int) -> Tensor:
    keys = torch.arange(positions)
    return (keys <= query) & (keys > query - window)


def _record_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    softcap: float | None = None,
    **options: Any,
) -> tuple[Tensor, None]:
    """Stands for an attention function of transformers: q [1, H, 1, D], k and v [1, KV heads, 1, D] -> [1, 1, H, D]."""
    probe = _probe.get()
    unknown = [name for name, given in options.items() if given is not None and given is not False and name not in _HARMLESS]
    if unknown:
        raise ModelError(f"its attention asks for {', '.join(unknown)}")
    if not query.shape[-1] == key.shape[-1] == value.shape[-1]:
        raise ModelError(f"its keys have {key.shape[-1]} dimensions and its values {value.shape[-1]}")
    window = probe.window(attention_mask, options.get("is_causal") or bool(getattr(module, "is_causal", False)))
    heads, _, size = query.shape[1:]
    scale = size**-0.5 if scaling is None else float(scaling)
    rule = AttentionRule(heads=heads, scale=scale, softcap=softcap or 0.0, window=window)
    probe.layers.append(AttentionLayer(key.shape[1], size, rule))
    return torch.empty(1, 1, heads, size, dtype=query.dtype), None


AttentionInterface.register(PROBE, _record_attention)
AttentionMaskInterface.register(PROBE, _record_mask)
