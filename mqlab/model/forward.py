"""What everything that computes obeys: this package's decoder and the models that transformers runs."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from mqlab.model.batch import BatchTensors
from mqlab.model.kv import LayerCache


class Forward(Protocol):
    """A causal language model over a paged KV cache. Called under ``torch.inference_mode``, by one thread at a time."""

    def states(self, batch: BatchTensors, cache: list[LayerCache]) -> Tensor:
        """Run one step: writes its keys and values into the cache.

        Returns:
            [T, hidden] float32, the hidden states of the step's tokens after the last norm.
        """
        ...

    def logits(self, states: Tensor) -> Tensor:
        """Logits of the tokens that follow: [R, hidden] float32 -> [R, vocab] float32, a soft cap of the model's included."""
        ...
