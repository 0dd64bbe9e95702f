"""The CPU kernels against their float64 references."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mqlab_kernels.paged_attention_cpu import paged_attention, paged_attention_reference
from mqlab_kernels.rope_cache_cpu import rope_cache, rope_reference

Case = dict[str, Any]


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """A pool with the blocks of a few sequences in any order, and the last few queries of each sequence."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    kv_heads, ratio = draw(st.integers(1, 3)), draw(st.sampled_from([1, 2, 3, 7]))
    size, block_size = draw(st.sampled_from([64, 80, 96, 128, 256])), draw(st.sampled_from([1, 4, 5, 16]))
    contexts = draw(st.lists(st.integers(1, 70), min_size=1, max_size=4))
    queries = [draw(st.integers(1, min(context, 9))) for context in contexts]
    needed = [-(-context // block_size) for context in contexts]
    pool = rng.permutation(sum(needed) + 3).astype(np.int32)
    tables = np.zeros((len(contexts), max(needed)), np.int32)
    for row, count in enumerate(needed):
        tables[row, :count], pool = pool[:count], pool[count:]
    shape = (sum(needed) + 3, kv_heads, block_size, size)
    return {
        "q": rng.normal(size=(sum(queries), kv_heads * ratio, size)).astype(np.float32) * draw(st.sampled_from([1.0, 8.0])),
        "keys": rng.normal(size=shape).astype(np.float32),
        "values": rng.normal(size=shape).astype(np.float32),
        "tables": tables,
        "table_rows": np.repeat(np.arange(len(contexts)), queries).astype(np.int32),
        "contexts": np.concatenate([np.arange(end - n + 1, end + 1) for end, n in zip(contexts, queries, strict=True)]).astype(np.int32),
        "scale": np.float32(size**-0.5),
        "softcap": np.float32(draw(st.sampled_from([0, 2, 50]))),
        "window": draw(st.one_of(st.just(0), st.integers(1, 80))),
    }


def attend(case: Case, rows: np.ndarray, out: np.ndarray) -> np.ndarray:
    q, keys, values, tables, table_rows, contexts = (case[name] for name in ("q", "keys", "values", "tables", "table_rows", "contexts"))
    scale, softcap, window = case["scale"], case["softcap"], case["window"]
    paged_attention(q, keys, values, tables, rows.astype(np.int32), table_rows, contexts, scale, softcap, window, out)
    return out


def all_rows(case: Case) -> np.ndarray:
    return attend(case, np.arange(len(case["q"])), np.empty_like(case["q"]))


@settings(deadline=None, max_examples=60)
@given(cases())
def test_attention_equals_the_reference(case: Case) -> None:
    np.testing.assert_allclose(all_rows(case), paged_attention_reference(**case), atol=2e-5)


@settings(deadline=None, max_examples=20)
@given(cases(), st.data())
def test_only_the_listed_rows_are_written(case: Case, data: st.DataObject) -> None:
    listed = np.array(data.draw(st.lists(st.integers(0, len(case["q"]) - 1), unique=True)), np.int64)
    out = attend(case, listed, np.full_like(case["q"], 7))
    others = np.setdiff1d(np.arange(len(out)), listed)
    assert (out[others] == 7).all()
    np.testing.assert_array_equal(out[listed], all_rows(case)[listed])


def to_bfloat16_bits(x: np.ndarray) -> np.ndarray:
    """Truncated, so that widening the bits gives a float32 with no rounding rule involved."""
    return (x.view(np.uint32) >> 16).astype(np.uint16)


def from_bfloat16_bits(bits: np.ndarray) -> np.ndarray:
    return (bits.astype(np.uint32) << 16).view(np.float32)


@settings(deadline=None, max_examples=20)
@given(cases())
def test_bfloat16_pool(case: Case) -> None:
    bits = {name: to_bfloat16_bits(case[name]) for name in ("keys", "values")}
    exact = {name: from_bfloat16_bits(value) for name, value in bits.items()}
    np.testing.assert_allclose(all_rows({**case, **bits}), paged_attention_reference(**{**case, **exact}), atol=2e-5)


@pytest.mark.parametrize("broken", [np.nan, np.inf])
@pytest.mark.parametrize(("softcap", "window"), [(0, 0), (50, 0), (0, 2)])
def test_a_broken_value_is_not_hidden(broken: float, softcap: float, window: int) -> None:
    """The sampler refuses logits that are not finite, so the kernel must let them through."""
    keys = np.ones((1, 1, 4, 64), np.float32)
    values = np.full_like(keys, broken)
    zeros = np.zeros(1, np.int32)
    out = np.zeros((1, 1, 64), np.float32)
    table, context, scale = np.zeros((1, 1), np.int32), np.full(1, 4, np.int32), np.float32(0.125)
    paged_attention(out.copy(), keys, values, table, zeros, zeros, context, scale, np.float32(softcap), window, out)
    assert not np.isfinite(out).any()


@settings(deadline=None, max_examples=30)
@given(
    tokens=st.integers(1, 9),
    heads=st.sampled_from([(1, 1), (3, 1), (9, 3), (14, 2)]),
    size=st.sampled_from([64, 80]),
    rotated=st.sampled_from([0, 16, 20, 64]),
    block_size=st.sampled_from([1, 5, 16]),
    bfloat16=st.booleans(),
    seed=st.integers(0, 2**32 - 1),
)
def test_rope_cache_equals_the_reference(
    tokens: int, heads: tuple[int, int], size: int, rotated: int, block_size: int, bfloat16: bool, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    queries, kv_heads = heads
    qkv = rng.normal(size=(tokens, (queries + 2 * kv_heads) * size)).astype(np.float32)
    angles = rng.uniform(0, 6, size=(50, rotated // 2))
    cos, sin = np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)
    positions, slots = rng.integers(0, 50, tokens), rng.permutation(4 * tokens * block_size)[:tokens]
    dtype = np.uint16 if bfloat16 else np.float32
    keys, values = (np.zeros((4 * tokens, kv_heads, block_size, size), dtype) for _ in range(2))
    q = np.empty((tokens, queries, size), np.float32)
    rope_cache(qkv, cos, sin, positions, slots, q, keys, values)

    split = np.split(qkv.reshape(tokens, -1, size), [queries, queries + kv_heads], axis=1)
    np.testing.assert_allclose(q, rope_reference(split[0], cos, sin, positions), atol=1e-5)
    stored_keys, stored_values = (
        (from_bfloat16_bits(pool) if bfloat16 else pool)[slots // block_size, :, slots % block_size] for pool in (keys, values)
    )
    rtol = 2**-8 if bfloat16 else 0
    np.testing.assert_allclose(stored_keys, rope_reference(split[1], cos, sin, positions), atol=1e-5, rtol=rtol)
    np.testing.assert_allclose(stored_values, split[2], atol=0, rtol=rtol)
    assert np.count_nonzero(keys.any(axis=(1, 3))) == tokens, "only the slots of this step are written"
