"""One slot per stream: merged while unread, never a queue."""

from __future__ import annotations

import asyncio
from itertools import chain

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqlab.client.slot import Slot, merge
from mqlab.types import Delta, Failure, RequestStats


def test_an_empty_slot_has_nothing() -> None:
    slot = Slot()
    assert slot.take_nowait() is None
    assert not slot.finished


def test_a_delta_is_taken_once() -> None:
    slot = Slot()
    slot.put(Delta("a", [1, 2]))
    assert slot.take_nowait() == Delta("a", [1, 2])
    assert slot.take_nowait() is None


@given(st.lists(st.lists(st.integers(0, 9), max_size=4), min_size=1, max_size=20))
def test_unread_deltas_are_one(parts: list[list[int]]) -> None:
    slot = Slot()
    for part in parts:
        slot.put(Delta("a", list(part)))
    slot.put(Delta("a", [7], finish="stop", stop_reason=7))
    assert slot.finished
    assert slot.take_nowait() == Delta("a", [*chain(*parts), 7], finish="stop", stop_reason=7)
    assert slot.take_nowait() is None


def test_a_taken_delta_is_the_readers() -> None:
    slot = Slot()
    slot.put(Delta("a", [1]))
    first = slot.take_nowait()
    slot.put(Delta("a", [2]))
    assert first == Delta("a", [1])


def test_text_is_joined_where_there_is_text() -> None:
    assert merge(Delta("a", [1], text="x"), Delta("a", [2], text="y")).text == "xy"
    assert merge(Delta("a", [1], text="x"), Delta("a", [2])).text == "x"
    assert merge(Delta("a", [1]), Delta("a", [2])).text is None


def test_what_the_prompt_has_cost_stays_until_all_that_it_has_cost_is_known() -> None:
    first, last = RequestStats(1.0, 2.0, 0.0), RequestStats(1.0, 2.0, 3.0)
    merged = merge(Delta("a", [1], stats=first), Delta("a", [2]))
    assert merged.stats == first
    assert merge(merged, Delta("a", [3], finish="stop", stats=last)).stats == last


def test_an_error_stays_with_the_tokens_before_it() -> None:
    failure = Failure("failed", "why")
    merged = merge(Delta("a", [1]), Delta("a", [], finish="error", error=failure))
    assert (merged.tokens, merged.finish, merged.error) == ([1], "error", failure)


def test_failure_comes_after_the_data() -> None:
    slot = Slot()
    slot.put(Delta("a", [1]))
    slot.fail(KeyError("gone"))
    assert slot.finished
    assert slot.take_nowait() == Delta("a", [1])
    for _ in range(2):
        with pytest.raises(KeyError, match="gone"):
            slot.take_nowait()


def test_a_finished_stream_cannot_fail() -> None:
    slot = Slot()
    slot.put(Delta("a", [1], finish="length"))
    slot.fail(KeyError("late"))
    assert slot.take_nowait() == Delta("a", [1], finish="length")
    assert slot.take_nowait() is None


def test_the_first_failure_counts() -> None:
    slot = Slot()
    slot.fail(KeyError("first"))
    slot.fail(ValueError("second"))
    with pytest.raises(KeyError, match="first"):
        slot.take_nowait()


@pytest.mark.parametrize("how", ["put", "fail"])
async def test_a_waiting_reader_is_woken(how: str) -> None:
    slot = Slot()
    reader = asyncio.create_task(slot.take())
    await asyncio.sleep(0)
    assert not reader.done()
    slot.put(Delta("a", [1])) if how == "put" else slot.fail(KeyError("gone"))
    slot.put(Delta("a", [2])) if how == "put" else slot.fail(KeyError("again"))
    (result,) = await asyncio.gather(reader, return_exceptions=True)
    if how == "put":
        assert result == Delta("a", [1, 2])
    else:
        assert isinstance(result, KeyError) and result.args == ("gone",)


async def test_a_reader_that_was_cancelled_is_forgotten() -> None:
    slot = Slot()
    reader = asyncio.create_task(slot.take())
    await asyncio.sleep(0)
    reader.cancel()
    await asyncio.gather(reader, return_exceptions=True)
    slot.put(Delta("a", [1]))
    assert await slot.take() == Delta("a", [1])
