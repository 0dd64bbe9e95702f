"""Paged decode attention in the interpreter against its float64 reference."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from mqlab_kernels.paged_decode import decode_splits, paged_decode, paged_decode_reference, scratch_size
from paged_kv import Paged, assert_close, canaries_live, guarded, paged, slots_of

CPU = torch.device("cpu")


def check(case: Paged, splits: int | None = None, **options: Any) -> None:
    """The answer is the reference's, and nothing around it is touched."""
    whole, out = guarded(tuple(case.q.shape), case.q.dtype)
    answer = paged_decode(*case.arguments, splits=splits, out=out, **options)
    assert answer is out
    assert_close(answer, paged_decode_reference(*case.arguments, **options))
    assert canaries_live(whole)


@st.composite
def launches(draw: st.DrawFn) -> tuple[Paged, dict[str, Any]]:
    """Any decode step that is small."""
    case = paged(
        draw(st.lists(st.integers(0, 40) | st.integers(120, 280), min_size=1, max_size=3)),
        kv_heads=draw(st.integers(1, 2)),
        group=draw(st.sampled_from([1, 2, 3, 5, 7, 8, 9, 17, 33])),
        size=draw(st.sampled_from([8, 16, 32, 40, 64, 80, 96, 112, 128, 192, 256])),
        block=draw(st.sampled_from([1, 3, 8, 16, 32, 48])),
        dtype=draw(st.sampled_from([torch.float32, torch.float16, torch.bfloat16])),
        seed=draw(st.integers(0, 2**32 - 1)),
    )
    options = {
        "scale": draw(st.sampled_from([0.3, 1.0, 3.0])) * case.q.shape[2] ** -0.5,
        "window": draw(st.just(0) | st.integers(1, 200)),
        "softcap": draw(st.sampled_from([0.0, 2.0, 50.0])),
        "splits": draw(st.none() | st.integers(1, 4)),
    }
    return case, options


@settings(deadline=None, max_examples=10, derandomize=True)
@given(launches())
def test_decode_equals_the_reference(launch: tuple[Paged, dict[str, Any]]) -> None:
    check(launch[0], **launch[1])


@pytest.mark.full
@pytest.mark.timeout(600)
@settings(deadline=None, max_examples=150)
@given(launches())
def test_many_decodes_equal_the_reference(launch: tuple[Paged, dict[str, Any]]) -> None:
    check(launch[0], **launch[1])


@pytest.mark.parametrize("splits", [1, 2, 3, 7])
def test_however_a_context_is_split(splits: int) -> None:
    check(paged([127, 128, 129, 385], kv_heads=1, group=4, size=64, block=16, dtype=torch.bfloat16), splits, scale=0.125)


def test_a_batch_that_fills_the_gpu_splits_long_contexts_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mqlab_kernels.paged_decode.PROGRAMS", 0)
    monkeypatch.setattr("mqlab_kernels.paged_decode.FULL_KEYS", 256)
    case = paged([256, 320], kv_heads=1, group=2, size=16, block=48)
    scratch = torch.full((scratch_size(2, 2, 16, 2),), torch.nan)
    answer = paged_decode(*case.arguments, scale=0.25, splits=2, scratch=scratch)
    assert_close(answer, paged_decode_reference(*case.arguments, scale=0.25))
    first, second = scratch[-8:].view(2, 2, 2).isnan().tolist()
    assert first == [[False, True]] * 2
    assert second == [[False, False]] * 2


@pytest.mark.parametrize("window", [1, 64, 65, 1000])
def test_a_split_window(window: int) -> None:
    check(paged([1, 130, 333], kv_heads=1, group=3, size=64, block=8), 3, scale=0.3, window=window)


def test_more_parts_than_are_combined_at_once() -> None:
    case = paged([128 * 16 + 1], kv_heads=1, group=1, size=32, block=48)
    last = slots_of(case.tables[0], 128 * 16 + 1, 48)[-1]
    case.keys[last // 48, :, last % 48] = case.q[0] / 4  # the part that is combined last outweighs those before it
    check(case, 17, scale=0.2)


def test_a_scratch_is_used_and_what_it_held_counts_nothing() -> None:
    case = paged([300, 0], kv_heads=2, group=3, size=64, block=16)
    scratch = torch.full((scratch_size(2, 6, 64, 3),), torch.nan)
    answer = paged_decode(*case.arguments, scale=0.125, splits=3, scratch=scratch)
    assert_close(answer, paged_decode_reference(*case.arguments, scale=0.125))
    assert not scratch[0].isnan()


def test_an_answer_of_its_own_is_contiguous_and_empty_batches_pass() -> None:
    case = paged([5], kv_heads=2, group=3, size=64, block=16)
    answer = paged_decode(*case.arguments, scale=0.125)
    assert answer.is_contiguous()
    assert answer.shape == case.q.shape
    nobody = paged_decode(case.q[:0], case.keys, case.values, case.tables[:0], case.contexts[:0], scale=0.125)
    assert nobody.shape == (0, 6, 64)


@given(
    rows=st.integers(1, 1024),
    kv_heads=st.sampled_from([1, 2, 8, 32]),
    group=st.sampled_from([1, 4, 7, 16, 17, 71]),
    longest=st.integers(1, 200_000),
    window=st.just(0) | st.integers(1, 5000),
)
def test_splits_follow_from_shapes(rows: int, kv_heads: int, group: int, longest: int, window: int) -> None:
    splits = decode_splits(rows, kv_heads * group, kv_heads, longest, window, CPU)
    seen = min(longest, window or longest)
    assert 1 <= splits <= 128
    assert splits == 1 or seen // splits >= 128
    assert splits <= 4 or rows * kv_heads * splits <= 132 * 8
    assert splits > 1 or seen < 256 or rows * kv_heads * math.ceil(group / 32) > 132 * 8 // 2


def test_few_rows_fill_an_h100_and_many_split_long_contexts_alone() -> None:
    assert decode_splits(1, 32, 8, 131_072, 0, CPU) * 8 >= 132 * 3
    assert decode_splits(64, 32, 8, 4096, 0, CPU) == 2
    assert decode_splits(256, 32, 8, 4096, 0, CPU) == 1
    assert decode_splits(256, 32, 8, 131_072, 0, CPU) == 4


def test_what_does_not_fit_is_refused() -> None:
    case = paged([5, 300], kv_heads=2, group=3, size=64, block=16)
    q, keys, values, tables, contexts = case.arguments
    with pytest.raises(ValueError, match="H must be a multiple"):
        paged_decode(q[:, :5], keys, values, tables, contexts, scale=1.0)
    with pytest.raises(ValueError, match="H must be a multiple"):
        paged_decode(q[..., :32], keys, values, tables, contexts, scale=1.0)
    with pytest.raises(ValueError, match="same strides"):
        paged_decode(q, keys, values.transpose(1, 2).contiguous().transpose(1, 2), tables, contexts, scale=1.0)
    with pytest.raises(ValueError, match="splits=129 must be 1 to 128"):
        paged_decode(*case.arguments, scale=1.0, splits=129)
    with pytest.raises(ValueError, match=r"scratch has 8 elements of torch.float32; 2 splits need 1560"):
        paged_decode(*case.arguments, scale=1.0, splits=2, scratch=torch.empty(8))
