"""An event loop on a thread of its own, used from plain code, from a running loop, and interrupted."""

from __future__ import annotations

import asyncio
import gc
import signal
import subprocess
import sys
import threading
from collections.abc import AsyncGenerator, Callable, Iterator

import pytest

from mqlab.client.sync import LoopThread
from mqlab.contract.waiting import until_sync
from mqlab.errors import CallTimeout, ClientClosedError, MqlabError


@pytest.fixture
def loop_thread() -> Iterator[LoopThread]:
    thread = LoopThread()
    yield thread
    thread.close()


async def add(a: int, b: int) -> int:
    await asyncio.sleep(0)
    return a + b


async def forever(log: list[str]) -> None:
    log.append("began")
    try:
        await asyncio.Event().wait()
    finally:
        await asyncio.sleep(0)
        log.append("cleaned up")


def interrupt_when(condition: Callable[[], object]) -> threading.Thread:
    """A thread that interrupts the main thread as soon as it waits and ``condition()`` is true."""
    main = threading.main_thread().ident
    assert main is not None

    def act() -> None:
        until_sync(lambda: condition() and sys._current_frames()[main].f_code is threading.Condition.wait.__code__)
        signal.pthread_kill(main, signal.SIGINT)

    thread = threading.Thread(target=act)
    thread.start()
    return thread


def test_results_and_errors_come_back(loop_thread: LoopThread) -> None:
    assert loop_thread.run(add(2, 3)) == 5

    async def fail() -> None:
        raise KeyError("x")

    with pytest.raises(KeyError, match="x"):
        loop_thread.run(fail())
    assert loop_thread.run(add(1, 1)) == 2


async def test_it_works_beside_a_running_loop(loop_thread: LoopThread) -> None:
    """As in a notebook's cell: the caller's loop, policy and asyncio itself stay what they were."""
    before = asyncio.get_running_loop(), asyncio.get_event_loop_policy(), asyncio.run
    assert loop_thread.run(add(2, 3)) == 5
    assert before == (asyncio.get_running_loop(), asyncio.get_event_loop_policy(), asyncio.run)
    assert await add(1, 2) == 3


def test_a_blocking_call_on_its_own_loop_is_refused(loop_thread: LoopThread) -> None:
    async def inside() -> int:
        return loop_thread.run(add(1, 1))

    with pytest.raises(MqlabError, match=r"inside its own event loop.*await the async method"):
        loop_thread.run(inside())


def test_a_timeout_cancels_and_the_loop_goes_on(loop_thread: LoopThread) -> None:
    log: list[str] = []
    job = loop_thread.submit(forever(log))
    until_sync(lambda: log)
    with pytest.raises(CallTimeout, match=r"no result within 0.05 s; the call was cancelled"):
        job.result(0.05)
    assert log == ["began", "cleaned up"]
    assert loop_thread.run(add(1, 1)) == 2


def test_a_timeout_of_the_coroutines_own_is_passed_on(loop_thread: LoopThread) -> None:
    async def fail() -> None:
        raise TimeoutError("its own")

    with pytest.raises(TimeoutError, match="its own"):
        loop_thread.run(fail(), timeout=5)


def test_an_interrupt_cancels_and_the_loop_goes_on(loop_thread: LoopThread) -> None:
    log: list[str] = []
    helper = interrupt_when(lambda: log)
    with pytest.raises(KeyboardInterrupt):
        loop_thread.run(forever(log))
    helper.join()
    assert log == ["began", "cleaned up"]
    assert loop_thread.run(add(1, 1)) == 2


async def count(log: list[str]) -> AsyncGenerator[int, None]:
    try:
        for i in range(1000):
            yield i
    finally:
        await asyncio.sleep(0)
        log.append("closed")


def test_iterate_reads_to_the_end(loop_thread: LoopThread) -> None:
    log: list[str] = []
    assert list(loop_thread.iterate(count(log))) == list(range(1000))
    assert log == ["closed"]


@pytest.mark.parametrize("leave", ["close", "drop", "break"])
def test_leaving_the_iterator_closes_the_generator(loop_thread: LoopThread, leave: str) -> None:
    log: list[str] = []
    items = loop_thread.iterate(count(log))
    assert next(items) == 0
    if leave == "close":
        items.close()  # pyright: ignore[reportAttributeAccessIssue]
    elif leave == "drop":
        del items
    else:
        for _ in items:
            break
        del items
    assert log == ["closed"]


def test_an_iterator_outlives_its_loop(loop_thread: LoopThread) -> None:
    log: list[str] = []
    items = loop_thread.iterate(count(log))
    assert next(items) == 0
    loop_thread.close()
    assert log == ["closed"]
    with pytest.raises(ClientClosedError):
        next(items)


def test_an_iterator_dropped_on_the_loop_itself_is_closed_without_waiting(loop_thread: LoopThread) -> None:
    log: list[str] = []
    box = [loop_thread.iterate(count(log))]
    assert next(box[0]) == 0

    async def drop() -> None:
        box.clear()

    loop_thread.run(drop())
    until_sync(lambda: log == ["closed"])


def test_jobs_run_side_by_side_and_are_cancelled_together(loop_thread: LoopThread) -> None:
    log: list[str] = []
    jobs = [loop_thread.submit(forever(log)) for _ in range(3)]
    until_sync(lambda: len(log) == 3)
    assert not any(job.done for job in jobs)
    loop_thread.cancel(jobs)
    assert log == ["began"] * 3 + ["cleaned up"] * 3
    assert all(job.done for job in jobs)
    with pytest.raises(ClientClosedError, match="cancelled"):
        jobs[0].result()


def test_a_job_cancelled_before_it_began_never_begins(loop_thread: LoopThread) -> None:
    log: list[str] = []
    gate = threading.Event()

    async def block() -> None:
        gate.wait(5)

    blocking = loop_thread.submit(block())
    job = loop_thread.submit(forever(log))
    job.cancel()
    gate.set()
    blocking.result()
    with pytest.raises(ClientClosedError):
        job.result(5)
    assert log == []


def test_close_ends_what_runs_and_refuses_what_comes(loop_thread: LoopThread) -> None:
    log: list[str] = []
    job = loop_thread.submit(forever(log))
    until_sync(lambda: log)
    loop_thread.close()
    loop_thread.close()
    assert loop_thread.closed
    assert log == ["began", "cleaned up"]
    with pytest.raises(ClientClosedError):
        job.result()
    job.cancel()
    with pytest.raises(ClientClosedError, match="closed; make a new one"):
        loop_thread.run(add(1, 1))


def test_threads_that_submit_while_it_closes_are_all_answered() -> None:
    loop_thread = LoopThread()
    answers: list[object] = []

    def ask() -> None:
        for _ in range(2000):
            try:
                answers.append(loop_thread.run(add(1, 1)))
            except ClientClosedError:
                answers.append("closed")
                return

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    until_sync(lambda: len(answers) > 20)
    loop_thread.close()
    for thread in threads:
        thread.join(10)
    assert not any(thread.is_alive() for thread in threads)
    assert set(answers) <= {2, "closed"}


def test_a_dropped_thread_ends() -> None:
    loop_thread = LoopThread("dropped-loop")
    assert loop_thread.run(add(1, 1)) == 2
    del loop_thread
    gc.collect()
    until_sync(lambda: not any(thread.name == "dropped-loop" for thread in threading.enumerate()))


def test_interpreter_exit_without_close_is_clean_and_quick() -> None:
    code = """
import asyncio, sys
from mqlab.client.sync import LoopThread
keep = LoopThread()
async def busy():
    try:
        await asyncio.Event().wait()
    finally:
        print("cleaned up", flush=True)
async def one():
    return asyncio.create_task(busy())
task = keep.run(one())
print(sorted({name.partition(".")[0] for name in sys.modules} & {"torch", "zmq", "IPython"}))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == ["[]", "cleaned up"]
