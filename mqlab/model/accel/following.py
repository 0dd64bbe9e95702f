"""The sampler of a rank that is told what was drawn."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from mqlab.model.sampler import Sampled
from mqlab.plan import Chunk


class StepSampler(Protocol):
    """What a runner draws with.

    Attributes:
        indices: [rows] int64 on the device, which draw of its request each row makes next.
    """

    indices: Tensor

    def prepare(self, chunks: tuple[Chunk, ...]) -> Any:
        """The draws of chunks of one token each, in the order of the rows of logits; ``on_device`` of the result says whether
        they can be made without the host."""
        ...

    def draw(self, logits: Tensor, draw: Any) -> Tensor:
        """[S or more, vocab] float32 -> [S] int64 on the device."""
        ...

    def next_round(self, draw: Any, counted: bool = False) -> Any:
        """The same rows, one draw on; ``counted`` where ``indices`` have been moved on already."""
        ...

    def finish(self, draw: Any, tokens_host: Sequence[int]) -> Sampled:
        """What was drawn, once the host has it."""
        ...


@dataclass(frozen=True)
class FollowingDraw:
    """As many rows."""

    rows: int
    on_device: bool = True


class FollowingSampler:
    """Draws nothing: its tokens are overwritten by those of rank 0 (``Group.share``)."""

    def __init__(self, max_rows: int, device: torch.device) -> None:
        self.indices = torch.zeros(max_rows, dtype=torch.int64, device=device)
        self._tokens = torch.zeros(max_rows, dtype=torch.int64, device=device)

    def prepare(self, chunks: tuple[Chunk, ...]) -> FollowingDraw:
        """Count them."""
        return FollowingDraw(len(chunks))

    def draw(self, logits: Tensor, draw: FollowingDraw) -> Tensor:
        """[rows] int64, to be written."""
        return self._tokens[: draw.rows]

    def next_round(self, draw: FollowingDraw, counted: bool = False) -> FollowingDraw:
        """The same."""
        return draw

    def finish(self, draw: FollowingDraw, tokens_host: Sequence[int]) -> Sampled:
        """Tokens; rank 0 has their logprobs."""
        return Sampled(tuple([int(token) for token in tokens_host]))
