"""What the ranks do together, and what the others see when one leaves."""

from __future__ import annotations

import threading

import pytest
import torch
from ranked import ranked
from torch import Tensor
from torch._C._distributed_c10d import HashStore

from mqlab.contract.rig import SEEN_S
from mqlab.model.making import Group
from mqlab.model.parallel.draws import shared_draws
from mqlab.model.parallel.group import PeerLost, TorchGroup
from mqlab.model.sampler import Sampled
from mqlab.plan import Chunk
from mqlab.types import SamplingParams


@pytest.mark.parametrize("size", [2, 3])
def test_collectives(size: int) -> None:
    widths = tuple(range(size, 0, -1))

    def together(group: Group) -> tuple[Tensor, ...]:
        own = torch.full((2, widths[group.rank]), float(group.rank))
        return group.all_reduce(torch.ones(3) * group.rank), group.all_gather(own, widths), group.share(torch.tensor([group.rank, 7]))

    for reduced, gathered, shared in ranked(size, together):
        assert reduced.tolist() == [sum(range(size))] * 3
        assert gathered.tolist() == [[float(rank) for rank, width in enumerate(widths) for _ in range(width)]] * 2
        assert shared.tolist() == [0, 7]
    assert ranked(size, lambda group: group.least(10 - group.rank)) == [10 - size + 1] * size


def test_a_group_of_one_needs_nobody() -> None:
    x = torch.ones(2, 3)
    assert ranked(1, lambda group: (group.all_reduce(x), group.all_gather(x, (3,)), group.share(x), group.least(4))) == [(x, x, x, 4)]


def test_a_rank_that_leaves_is_missed() -> None:
    def part(group: Group) -> str:
        group.least(0)  # all are there
        if group.rank == 1:
            return "left"
        try:
            group.all_reduce(torch.ones(3))
        except PeerLost as error:
            return str(error)
        return "nothing was seen"

    stayed, left = ranked(2, part)
    assert left == "left" and "a collective of torch.distributed failed" in stayed


def test_a_rank_that_closes_its_group_is_missed_though_it_lives_on() -> None:
    others_know = threading.Barrier(3)

    def part(group: Group) -> str:
        group.least(0)  # all are there
        try:
            if group.rank == 1:
                group.close()
            return str(group.least(0))
        except PeerLost as error:
            return str(error)
        finally:
            group.close()
            others_know.wait(SEEN_S)  # and only then do threads end, and drop what they hold

    first, left, last = ranked(3, part)
    assert left == "this rank has left the others"
    assert all("a collective of torch.distributed failed" in one for one in (first, last))


def test_after_an_abort_no_collective_is_begun() -> None:
    group = TorchGroup(HashStore(), 0, 1)
    assert group.least(3) == 3
    group.abort()
    for use in (group.all_reduce, group.share, lambda x: group.all_gather(x, (1,)), lambda x: group.least(0)):
        with pytest.raises(PeerLost, match="another rank is gone"):
            use(torch.ones(1, 1))
    group.close()
    group.close()


def test_rank_0_draws_for_all() -> None:
    chunks = (Chunk("a", (1,), 0, (0,), True, SamplingParams(), 0), Chunk("b", (1,), 0, (1,), True, SamplingParams(), 0))

    def draw(logits: Tensor, chunks: tuple[Chunk, ...]) -> Sampled:
        return Sampled((5, -1))

    def refuse(logits: Tensor, chunks: tuple[Chunk, ...]) -> Sampled:
        raise AssertionError("only rank 0 draws")

    def sampled(group: Group) -> Sampled:
        return shared_draws(draw if group.rank == 0 else refuse, group)(torch.zeros(2, 8), chunks)

    assert [one.tokens for one in ranked(3, sampled)] == [(5, -1)] * 3
