"""One queue per stream: every delta as it came, from whichever thread."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator

import pytest

from mqlab.client.queue import Queue
from mqlab.types import Delta

MANY = 20_000


def test_deltas_are_taken_one_by_one_in_order() -> None:
    queue = Queue()
    deltas = [Delta("a", [1]), Delta("a", [2]), Delta("a", [3], finish="length")]
    for delta in deltas:
        assert not queue.finished
        queue.put(delta)
    assert queue.finished
    assert [queue.take_nowait() for _ in range(4)] == [*deltas, None]


def test_failure_comes_after_the_data() -> None:
    queue = Queue()
    queue.put(Delta("a", [1]))
    queue.fail(KeyError("gone"))
    assert queue.finished and queue.failed
    assert queue.take_nowait() == Delta("a", [1])
    with pytest.raises(KeyError, match="gone"):
        queue.take_nowait()


@pytest.mark.parametrize("how", ["put", "fail"])
async def test_a_waiting_reader_is_woken(how: str) -> None:
    queue = Queue()
    reader = asyncio.create_task(queue.take())
    await asyncio.sleep(0)
    queue.put(Delta("a", [1])) if how == "put" else queue.fail(KeyError("gone"))
    (result,) = await asyncio.gather(reader, return_exceptions=True)
    assert result == Delta("a", [1]) if how == "put" else isinstance(result, KeyError)


async def test_a_put_between_looking_and_waiting_is_not_slept_through() -> None:
    queue = Queue()
    assert queue.take_nowait() is None
    queue.put(Delta("a", [1]))
    assert queue.arrival().done()


@pytest.fixture
def restless() -> Iterator[None]:
    """Threads take turns a thousand times as often as they would."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(before / 1000)
    yield
    sys.setswitchinterval(before)


async def test_puts_from_another_thread_lose_nothing(restless: None) -> None:
    queue, loop = Queue(), asyncio.get_running_loop()

    def put_all() -> None:
        for i in range(MANY):
            queue.put(Delta("a", [i]))
            if i % 100 == 0:  # else the reader would sleep through all of it
                loop.call_soon_threadsafe(int)

    async def read_all() -> list[int]:
        return [(await queue.take()).tokens[0] for _ in range(MANY)]

    async with asyncio.timeout(30):
        tokens, _ = await asyncio.gather(read_all(), asyncio.to_thread(put_all))
    assert tokens == list(range(MANY))
