"""Prefill attention in the interpreter against its float64 reference."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from chunked_kv import Chunked, attend, check_prefill, chunked
from hypothesis import given, settings
from hypothesis import strategies as st
from mqlab_kernels import prefill_attention as module
from mqlab_kernels.kernel import CAPABILITIES, Config
from mqlab_kernels.prefill_attention import CASES, SWEEP, choose, longest, prefill_attention
from paged_kv import assert_close

Launch = tuple[Chunked, dict[str, Any]]

ANY_CHUNK = st.tuples(st.just(1) | st.integers(0, 12) | st.integers(30, 90), st.just(0) | st.integers(0, 70) | st.integers(120, 200))


@st.composite
def launches(draw: st.DrawFn) -> Launch:
    """Any prefill step that is small: (queries, tokens before them) of each chunk."""
    chunks = draw(st.lists(ANY_CHUNK, min_size=1, max_size=3).filter(lambda some: any(count for count, _ in some)))
    case = chunked(
        [(count, before + count) for count, before in chunks],
        kv_heads=draw(st.integers(1, 2)),
        group=draw(st.sampled_from([1, 2, 3, 5, 7, 8, 17])),
        size=draw(st.sampled_from([16, 32, 40, 64, 80, 96, 112, 128, 192, 256])),
        block=draw(st.sampled_from([1, 3, 8, 16, 32, 48])),
        dtype=draw(st.sampled_from([torch.float32, torch.float16, torch.bfloat16])),
        seed=draw(st.integers(0, 2**32 - 2)),
    )
    options = {
        "scale": draw(st.sampled_from([0.05, 0.125, 1.0])),
        "window": draw(st.just(0) | st.integers(1, 150)),
        "softcap": draw(st.sampled_from([0.0, 2.0, 50.0])),
    }
    return case, options


@settings(deadline=None, max_examples=7, derandomize=True)
@given(launches())
def test_prefill_equals_the_reference(launch: Launch) -> None:
    check_prefill(launch[0], **launch[1])


@pytest.mark.full
@pytest.mark.timeout(900)
@settings(deadline=None, max_examples=300)
@given(launches())
def test_many_prefills_equal_the_reference(launch: Launch) -> None:
    check_prefill(launch[0], **launch[1])


@pytest.mark.parametrize("tile", sorted({tuple(config.constants.values()) for config in SWEEP}))
def test_no_tile_changes_the_answer(tile: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    config = Config(constants={"ROWS": tile[0], "KEYS": tile[1]})
    monkeypatch.setattr(module, "choose", lambda constants, capability: config)
    for window in (0, 150):
        check_prefill(chunked([(50, 190), (1, 65)], kv_heads=1, group=3, size=32, block=16), scale=0.2, window=window)


def test_a_chunk_does_not_see_its_neighbours() -> None:
    """A chunk's answer in a batch is bit for bit its answer alone, whatever tiles the others fill."""
    case = chunked([(1, 40), (33, 50), (2, 2), (1, 1), (9, 9)], kv_heads=1, group=3, size=32, block=8)
    together = attend(case, scale=0.2)
    for row in range(5):
        start, end = case.query_starts[row : row + 2].tolist()
        alone = case.only(row, 0, end - start)
        answer = prefill_attention(*alone.arguments, max_query=case.longest, scale=0.2)
        torch.testing.assert_close(together[start:end], answer, atol=0, rtol=0)


def test_max_query_may_be_more_than_there_is() -> None:
    case = chunked([(3, 20), (5, 5)], kv_heads=1, group=4, size=64, block=16, dtype=torch.float16)
    exact = attend(case, scale=0.1)
    assert_close(prefill_attention(*case.arguments, max_query=4096, scale=0.1), exact.double())


def test_rows_of_no_chunk_stay_as_they_are() -> None:
    case = chunked([(3, 20), (5, 5)], kv_heads=1, group=4, size=32, block=16)
    out = torch.full((8, 4, 32), 7.0)
    starts = torch.tensor([0, 3, 3], dtype=torch.int32)
    prefill_attention(case.q, case.keys, case.values, case.tables, starts, case.contexts, max_query=3, scale=0.1, out=out)
    assert bool((out[3:] == 7.0).all())
    assert not bool((out[:3] == 7.0).any())


def test_no_queries_is_no_launch() -> None:
    case = chunked([(0, 20), (0, 0)], kv_heads=1, group=1, size=32, block=16)
    assert attend(case, scale=0.1).shape == (0, 1, 32)


def test_a_cache_of_another_type_is_read_in_q_s() -> None:
    case = chunked([(5, 40)], kv_heads=1, group=2, size=32, block=16, dtype=torch.bfloat16)
    wide = Chunked(case.q.float(), *case.arguments[1:])
    same = Chunked(wide.q, case.keys.float(), case.values.float(), *case.arguments[3:])
    torch.testing.assert_close(attend(wide, scale=0.1), attend(same, scale=0.1), atol=0, rtol=0)


@pytest.mark.parametrize(
    ("q", "values", "scale", "told"),
    [
        (torch.zeros(3, 5, 32), torch.zeros(2, 2, 16, 32), 1.0, "heads"),
        (torch.zeros(3, 4, 64), torch.zeros(2, 2, 16, 32), 1.0, "one size"),
        (torch.zeros(3, 4, 32), torch.zeros(2, 2, 32, 16).transpose(2, 3), 1.0, "stride"),
        (torch.zeros(3, 4, 32), torch.zeros(2, 2, 16, 32), 0.0, "scale=0.0"),
    ],
)
def test_what_does_not_fit_is_refused(q: torch.Tensor, values: torch.Tensor, scale: float, told: str) -> None:
    integers = (torch.zeros(1, 2, dtype=torch.int32), torch.tensor([0, 3], dtype=torch.int32), torch.tensor([3], dtype=torch.int32))
    with pytest.raises(ValueError, match=told):
        prefill_attention(q, torch.zeros(2, 2, 16, 32), values, *integers, max_query=3, scale=scale)


@pytest.mark.parametrize("capability", CAPABILITIES)
def test_every_case_has_a_config_of_the_sweep(capability: int) -> None:
    assert all(choose(case.constants, capability) in SWEEP for case in CASES)


@pytest.mark.parametrize(("rows", "expected"), [(1, 16), (16, 16), (17, 64), (64, 64), (65, 128), (100_000, 128)])
def test_a_chunk_s_class(rows: int, expected: int) -> None:
    assert longest(rows) == expected
