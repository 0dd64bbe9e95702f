"""Several streams read as one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqlab.front.merge import Merged


class Source:
    """A stream of numbers that knows whether it was closed; fails after them where told to."""

    def __init__(self, count: int, error: Exception | None = None) -> None:
        self.closed = False
        self._count = count
        self._error = error

    async def items(self) -> AsyncGenerator[int, None]:
        try:
            for i in range(self._count):
                await asyncio.sleep(0)
                yield i
            if self._error is not None:
                raise self._error
        finally:
            self.closed = True


@given(st.lists(st.integers(0, 5), min_size=1, max_size=6))
def test_all_items_come_in_the_order_of_their_stream(counts: list[int]) -> None:
    async def collect() -> list[tuple[int, int]]:
        return [pair async for pair in Merged({number: Source(count).items() for number, count in enumerate(counts)})]

    pairs = asyncio.run(collect())
    for number, count in enumerate(counts):
        assert [item for owner, item in pairs if owner == number] == list(range(count))
    assert len(pairs) == sum(counts)


@pytest.mark.parametrize("others", [0, 3])
async def test_the_first_error_ends_all_streams(others: int) -> None:
    sources = [Source(1, ValueError("bad")), *(Source(10**6) for _ in range(others))]
    with pytest.raises(ValueError, match="bad"):
        async with aclosing(Merged({number: source.items() for number, source in enumerate(sources)})) as merged:
            async for _ in merged:
                pass
    assert all(source.closed for source in sources)


@pytest.mark.parametrize("count", [1, 4])
async def test_leaving_early_closes_all_streams(count: int) -> None:
    sources = [Source(10**6) for _ in range(count)]
    async with aclosing(Merged({number: source.items() for number, source in enumerate(sources)})) as merged:
        seen: set[int] = set()
        async for number, _ in merged:
            seen.add(number)
            if len(seen) == count:
                break
    assert all(source.closed for source in sources)


async def test_a_slow_reader_holds_the_streams_back() -> None:
    produced = 0

    async def counting() -> AsyncGenerator[int, None]:
        nonlocal produced
        while True:
            produced += 1
            yield produced

    async with aclosing(Merged({"a": counting(), "b": counting()})) as merged:
        await anext(merged)
        for _ in range(100):
            await asyncio.sleep(0)
        assert produced < 10


async def test_one_stream_can_be_ended_while_the_others_go_on() -> None:
    endless, short = Source(10**6), Source(50)
    async with aclosing(Merged({"endless": endless.items(), "short": short.items()})) as merged:
        await anext(merged)
        merged.end("endless")
        rest = [item async for key, item in merged if key == "short"]
    assert rest[-1] == 49
    assert endless.closed and short.closed
