"""Of what a decoder is made: which products, and which share of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from mqlab.model.layers import Linear, Product


class Group(Protocol):
    """The ranks that hold a model's shares, as one of them sees it. Every rank makes the same calls in the same order."""

    @property
    def rank(self) -> int:
        """Which of them this is, from 0."""
        ...

    @property
    def size(self) -> int:
        """How many there are."""
        ...

    def all_reduce(self, x: Tensor) -> Tensor:
        """The sum over the ranks, of the same shape, in the place of ``x``."""
        ...

    def all_gather(self, x: Tensor, widths: tuple[int, ...]) -> Tensor:
        """[M, widths[rank]] of each rank -> [M, sum(widths)], side by side in the order of ranks."""
        ...

    def share(self, x: Tensor) -> Tensor:
        """What rank 0 has in ``x``, of the same shape, in the place of ``x``."""
        ...

    def least(self, count: int) -> int:
        """The smallest of the ranks' counts."""
        ...

    def close(self) -> None:
        """Take part no more, for this rank cannot go on: those who wait for it fail."""
        ...


@dataclass(frozen=True)
class Alone:
    """The group of one."""

    rank: int = 0
    size: int = 1

    def all_reduce(self, x: Tensor) -> Tensor:
        """``x``."""
        return x

    def all_gather(self, x: Tensor, widths: tuple[int, ...]) -> Tensor:
        """``x``."""
        return x

    def share(self, x: Tensor) -> Tensor:
        """``x``."""
        return x

    def least(self, count: int) -> int:
        """``count``."""
        return count

    def close(self) -> None:
        """Nobody waits."""


ALONE = Alone()


@dataclass(frozen=True)
class Making:
    """How the parts of a decoder are made.

    Attributes:
        product: makes a linear layer of a weight [N, K] and a bias [N].
        group: the ranks that each hold a share.
    """

    product: Callable[[Tensor, Tensor | None], Product] = Linear
    group: Group = ALONE


PLAIN = Making()
