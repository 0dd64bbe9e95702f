"""Work in a thread with a deep stack: its result, its failure, and the end of a process under it."""

from __future__ import annotations

import subprocess
import sys
import threading
from typing import NoReturn

from mqlab.engine.deepstack import on_deep_stack


class Panic(BaseException):
    """What foreign code raises."""


def depth(left: int) -> int:
    return 1 + depth(left - 1) if left else 0


def panic() -> NoReturn:
    raise Panic("lost")


def test_the_result_is_the_works_and_other_threads_have_the_stack_that_they_had() -> None:
    before = threading.stack_size()
    assert on_deep_stack(lambda: depth(500)).result(10) == 500
    assert threading.stack_size() == before


def test_whatever_is_raised_is_told() -> None:
    assert isinstance(on_deep_stack(panic).exception(10), Panic)


def test_a_process_does_not_end_under_it() -> None:
    """Foreign code that comes back after Python's end crashes the process."""
    script = """
import threading
from mqlab.engine.deepstack import on_deep_stack
on_deep_stack(lambda: (threading.Event().wait(0.5), print("done", flush=True)))
"""
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    assert run.stdout == "done\n"
