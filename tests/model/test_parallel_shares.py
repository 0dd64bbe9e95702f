"""Who holds what of a model: everything by somebody, queries where their keys are, and nobody much more than another."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import psutil
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mqlab.errors import ConfigError
from mqlab.model.architecture import Architecture, read_architecture
from mqlab.model.kv import block_bytes, check_memory
from mqlab.model.making import Alone
from mqlab.model.parallel.shares import Share, local, rows, shares_of, split, vocab_widths, width

LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 49152,
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "max_position_embeddings": 2048,
}


def shape(**changes: Any) -> Architecture:
    return replace(read_architecture(LLAMA), **changes)


def heads_of(arch: Architecture, size: int) -> list[tuple[int, int]]:
    return [(width(share.heads), width(share.kv_heads)) for share in shares_of(arch, size)]


@given(st.integers(0, 5000), st.integers(1, 20), st.sampled_from([1, 8, 16]))
def test_a_split_is_whole_and_even(count: int, parts: int, unit: int) -> None:
    widths = split(count, parts, unit)
    assert (len(widths), sum(widths)) == (parts, count)
    assert max(widths) - min(widths) <= unit
    if count // unit >= parts:
        assert all(one % unit == 0 for one in widths[:-1])


sizes = st.integers(1, 12).flatmap(
    lambda kv: st.tuples(st.just(kv), st.integers(1, 9), st.integers(1, kv) | st.integers(1, 4).map(lambda copies: kv * copies))
)


def touching(parts: list[slice]) -> bool:
    return all(one.stop == next.start for one, next in pairwise(parts))


@given(sizes, st.integers(64, 400), st.integers(64, 400))
def test_everything_is_held_and_queries_have_their_keys(sizes: tuple[int, int, int], inner: int, vocab: int) -> None:
    kv_heads, queries, size = sizes
    arch = shape(heads=kv_heads * queries, kv_heads=kv_heads, intermediate=inner, vocab=vocab)
    if size > arch.heads:
        with pytest.raises(ConfigError, match=f"{arch.heads} query and {kv_heads} KV heads: pass at most {kv_heads}, or a multiple"):
            shares_of(arch, size)
        return
    shares = shares_of(arch, size)
    for kind, count in (("heads", arch.heads), ("inner", inner), ("vocab", vocab)):
        parts = [getattr(share, kind) for share in shares]
        assert touching(parts) and (parts[0].start, parts[-1].stop) == (0, count) and all(map(width, parts))
    for share in shares:
        assert_serves_its_queries(share, queries)


def assert_serves_its_queries(share: Share, queries: int) -> None:
    """Query head h reads KV head h // queries, which must be here, and by the same rule among those that are here."""
    keys = [head // queries for head in range(share.heads.start, share.heads.stop)]
    here = width(share.heads) // width(share.kv_heads)
    assert keys == [share.kv_heads.start + place // here for place in range(width(share.heads))]


def test_uneven_shares() -> None:
    assert heads_of(shape(), 2) == [(6, 2), (3, 1)]
    assert heads_of(shape(), 3) == [(3, 1)] * 3
    assert [width(share.inner) for share in shares_of(shape(intermediate=200), 3)] == [64, 64, 72]


def test_more_ranks_than_keys_share_the_queries_of_one() -> None:
    assert heads_of(shape(heads=7, kv_heads=1), 2) == [(4, 1), (3, 1)]
    assert heads_of(shape(), 6) == [(2, 1), (1, 1)] * 3


@pytest.mark.parametrize("size", [4, 5, 7, 8, 12])
def test_a_size_that_does_not_suit_is_refused(size: int) -> None:
    with pytest.raises(ConfigError, match=rf"--tensor-parallel-size={size} .* pass at most 3, or a multiple of it up to 9"):
        shares_of(shape(), size)


def test_the_local_shape() -> None:
    mine = local(shape(), Alone(1, 2))
    assert (mine.heads, mine.kv_heads, mine.intermediate, mine.kv_shapes[0]) == (3, 1, 768, (1, 64))
    assert (mine.hidden, mine.vocab, mine.head_dim) == (576, 49152, 64)
    assert local(shape(), Alone()) == shape()
    assert vocab_widths(shape(vocab=97), Alone(0, 2)) == (48, 49)
    assert rows(slice(1, 3), 16) == slice(16, 48)


def test_the_memory_of_all_ranks_of_a_machine_counts() -> None:
    mine, per_rank = local(shape(), Alone(0, 3)), psutil.virtual_memory().available // 2
    blocks = per_rank // block_bytes(mine, 16, torch.float32)
    check_memory(mine, blocks, 16, torch.float32)
    with pytest.raises(ConfigError, match=f"{blocks} KV blocks in each of 3 processes take"):
        check_memory(mine, blocks, 16, torch.float32, ranks=3)
