"""What every part of the package asks of a model before its weights are read."""

from __future__ import annotations

from typing import Protocol


class ModelShape(Protocol):
    """What is known of a model before its weights are read."""

    @property
    def name(self) -> str:
        """Its class, as config.json names it."""
        ...

    @property
    def hidden(self) -> int:
        """Width of its hidden states."""
        ...

    @property
    def vocab(self) -> int:
        """Rows of its logits."""
        ...

    @property
    def max_len(self) -> int:
        """Positions that it was made for."""
        ...

    @property
    def kv_shapes(self) -> tuple[tuple[int, int], ...]:
        """KV heads and head size of each layer."""
        ...
