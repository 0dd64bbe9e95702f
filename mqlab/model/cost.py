"""What a step moves and computes, from a model's config.json alone, and how long that takes on a device."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mqlab.model.architecture import Architecture, read_architecture
from mqlab.model.device import Device

_WIDTHS = {"float32": 4, "bfloat16": 2, "float16": 2}


@dataclass(frozen=True, kw_only=True)
class ModelCost:
    """Bytes and floating-point operations of a decoder. Norms, biases and rotations are left out: they are below 0.1 %.

    Attributes:
        layer_bytes: weights of all layers' matrices: what every step reads.
        layer_flops: that those cost a token.
        head_bytes: weights of the output projection: what a step reads that samples.
        head_flops: that it costs a token whose logits are wanted.
        weight_bytes: all weights, the token embedding too.
        kv_bytes: keys and values of a token.
        attention_flops: that a pair of a token and one that it looks at costs, over all layers.
        windows: how many tokens a query sees, itself included, and the share of layers of which that holds; without those that see all.
    """

    layer_bytes: int
    layer_flops: int
    head_bytes: int
    head_flops: int
    weight_bytes: int
    kv_bytes: int
    attention_flops: int
    windows: tuple[tuple[int, float], ...] = ()

    @staticmethod
    def of(config: Mapping[str, Any], dtype: str = "bfloat16") -> ModelCost:
        """Of a config.json, with weights, keys and values of ``dtype``.

        Raises:
            ModelError: the architecture is of none of the decoder's families, or a field is missing or wrong.
        """
        return ModelCost.of_architecture(read_architecture(dict(config)), dtype)

    @staticmethod
    def of_architecture(arch: Architecture, dtype: str) -> ModelCost:
        """Likewise, of one that was read."""
        width = _WIDTHS[dtype]
        layers = arch.layers * _layer_parameters(arch)
        head = arch.hidden * arch.vocab
        spans = Counter(window for window in arch.windows if window)
        return ModelCost(
            layer_bytes=layers * width,
            layer_flops=2 * layers,
            head_bytes=head * width,
            head_flops=2 * head,
            weight_bytes=(layers + head * (1 if arch.tied else 2)) * width,
            kv_bytes=2 * sum(heads * size for heads, size in arch.kv_shapes) * width,
            attention_flops=4 * arch.layers * arch.heads * arch.head_dim,
            windows=tuple((window, count / arch.layers) for window, count in sorted(spans.items())),
        )

    def seen(self, context: int) -> float:
        """Of a context of so many tokens, what a query sees, as a mean over the layers."""
        return context - sum(share * max(0, context - window) for window, share in self.windows)


@dataclass(frozen=True, slots=True)
class Work:
    """What a device does in one round of a plan.

    Attributes:
        tokens: that run through the layers.
        sampled: those whose logits are computed.
        sequences: how many they belong to.
        context: tokens whose keys and values are read, over all sequences.
        pairs: of a token and one that it looks at.
    """

    tokens: int
    sampled: int = 0
    sequences: int = 0
    context: float = 0.0
    pairs: float = 0.0


def step_seconds(device: Device, cost: ModelCost, work: Work) -> float:
    """How long a round takes: the matrices, attention by the same rule, and what the device's fit adds.

    Source of the rule: the smooth maximum that fits vidur's measurements (profiles/devices/measured.toml); the roofline of BLIS.
    """
    moved, flops = cost.layer_bytes, cost.layer_flops * work.tokens
    if work.sampled:
        moved += cost.head_bytes
        flops += cost.head_flops * work.sampled
    fit = device.fit
    attention = device.busy_seconds(cost.kv_bytes * work.context, cost.attention_flops * work.pairs)
    extra = fit.step_ms * 1e-3 + fit.sequence_us * 1e-6 * work.sequences + fit.token_us * 1e-6 * work.tokens
    squares = (fit.context_ns * work.pairs + fit.cached_ns * work.context + fit.crowd_ns * work.tokens**2) * 1e-9
    return device.busy_seconds(moved, flops) + attention + extra + squares


def _layer_parameters(arch: Architecture) -> int:
    """Of the matrices of one layer: queries, keys and values, the output of attention, the MLP."""
    heads = (2 * arch.heads + 2 * arch.kv_heads) * arch.head_dim
    return arch.hidden * (heads + (len(arch.family.names.up) + 1) * arch.intermediate)
