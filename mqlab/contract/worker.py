"""A process that runs checks of the contract, one at a time: ``python -m mqlab.contract.worker ANSWERS_FD``.

What to check comes as lines on stdin, answers go out as lines on ANSWERS_FD. It runs whatever the user's layout does, so it is the
one that crashes, hangs and leaks. pytest runs the checks, for its explanations of failed assertions. The end of stdin ends the
process and all that it started.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

import msgspec
import psutil
import pytest

from mqlab.contract import MODULES
from mqlab.contract.messages import Line, Outcome, Plan, Task
from mqlab.errors import ConfigError
from mqlab.wire.rundir import remove_tree

if TYPE_CHECKING:
    from mqlab.contract.rig import Check, Rig

_SETTLE_S = 3.0
_LIBRARY_THREADS = {"GarbageCollectorThread"}  # pyzmq's, made on first use, for the life of the process
_HERE = str(Path(__file__).parent)
_FAILING_WARNINGS = (
    "RuntimeWarning",
    "ResourceWarning",
    "pytest.PytestUnraisableExceptionWarning",
    "pytest.PytestUnhandledThreadExceptionWarning",
)
_OPTIONS = (
    *("--disable-plugin-autoload", "--noconftest", "-s", f"-c{os.devnull}", f"--rootdir={_HERE}"),
    *("-pno:terminal", "-pno:cacheprovider", "-pno:logging"),
    *(f"-Werror::{name}" for name in _FAILING_WARNINGS),
)
"""pytest as it comes, whatever the folder that this runs in and the user's other plugins would make of it."""


class CheckItem(pytest.Item):
    """One check with one rig, as pytest runs it."""

    def __init__(self, *, check: Check, rig: Rig, deadline: float, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._check, self._rig, self._deadline = check, rig, deadline

    def runtest(self) -> None:
        """See pytest.Item; what is left behind is a failure too."""
        before = _held()
        asyncio.run(_within(self._deadline, self._check, self._rig))
        _assert_nothing_left(before)


class Checks:
    """The plugin: says what there is to check, then runs what it is asked for."""

    def __init__(self, task: Task, answers: int) -> None:
        self._task = task
        self._answers = answers
        self._error: BaseException | None = None
        self._file = ""

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection(self, session: pytest.Session) -> bool:
        """Instead of looking for test files."""
        pytest.register_assert_rewrite(*MODULES)
        from mqlab.contract.cases import cases_of

        config = self._task.config
        try:
            rig, checks, cases = cases_of(config)
        except ConfigError as error:
            self._answer(Plan(error=str(error)))
            return True
        self._file = str(Path(config.topology).expanduser().resolve())
        names = [case.name for case in cases if not case.skipped]
        session.items = [CheckItem.from_parent(session, name=name, check=checks[name], rig=rig, deadline=config.deadline) for name in names]
        self._answer(Plan(cases))
        return True

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Instead of running everything in order."""
        items = {item.name: item for item in session.items}
        for name in _asked(Path(self._task.folder)):
            begin = time.monotonic()
            self._error = None
            session.config.hook.pytest_runtest_protocol(item=items[name], nextitem=None)
            self._answer(self._outcome(name, time.monotonic() - begin))
        return True

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_makereport(self, call: pytest.CallInfo[None]) -> None:
        """Keep the first thing that went wrong."""
        if call.excinfo is not None and self._error is None:
            self._error = call.excinfo.value

    def _outcome(self, name: str, seconds: float) -> Outcome:
        error = self._error
        return Outcome(name, seconds) if error is None else Outcome(name, seconds, _told(error), list(self._trail(error)))

    def _trail(self, error: BaseException) -> Iterator[Line]:
        """The way through the check and the layout, of what was raised first."""
        while (earlier := error.__cause__ or (None if error.__suppress_context__ else error.__context__)) is not None:
            error = earlier
        for frame in traceback.extract_tb(error.__traceback__):
            ours = frame.filename.startswith(_HERE) and frame.filename != __file__
            if ours or frame.filename == self._file:
                yield Line(frame.filename, frame.lineno or 0, frame.line or "")

    def _answer(self, answer: Plan | Outcome) -> None:
        os.write(self._answers, msgspec.json.encode(answer) + b"\n")


def _told(error: BaseException) -> str:
    text = str(error)
    return text if isinstance(error, AssertionError) and text else f"{type(error).__name__}: {text}"


async def _within(seconds: float, check: Check, rig: Rig) -> None:
    deadline = asyncio.timeout(seconds)
    try:
        async with deadline:
            await check(rig)
    except TimeoutError as error:
        if not deadline.expired():
            raise
        raise TimeoutError(f"not done within {seconds:g} s (deadline)") from error


def _held() -> set[str]:
    """Processes, threads and run folders, in words."""
    from mqlab.contract.rig import run_folders

    children = psutil.Process().children(recursive=True)
    threads = [thread for thread in threading.enumerate() if type(thread).__name__ not in _LIBRARY_THREADS]
    return {
        *(f"process {child.pid}" for child in children),
        *(f"thread {thread.name} ({thread.ident})" for thread in threads),
        *(f"folder {folder}" for folder in run_folders()),
    }


def _assert_nothing_left(before: set[str]) -> None:
    from mqlab.contract.waiting import until_sync

    try:
        until_sync(lambda: _held() <= before, timeout=_SETTLE_S)
    except TimeoutError:
        raise AssertionError(f"left behind: {', '.join(sorted(_held() - before))}") from None


def _asked(folder: Path) -> Iterator[str]:
    """Names of checks, as they come."""
    names: SimpleQueue[str] = SimpleQueue()
    threading.Thread(target=_listen, args=(names, folder), name="mqlab-asked", daemon=True).start()
    while True:
        yield names.get()


def _listen(names: SimpleQueue[str], folder: Path) -> None:
    for line in sys.stdin:
        names.put(line.strip())
    remove_tree(folder)
    os.killpg(0, signal.SIGKILL)  # this process leads its group; programs that a check has started are in it


def _main() -> None:
    task = msgspec.json.decode(sys.stdin.readline(), type=Task)
    sys.path[:] = task.path
    answers = int(sys.argv[1])
    os.set_inheritable(answers, False)
    with closing(os.fdopen(answers, "wb")):
        pytest.main(list(_OPTIONS), plugins=[Checks(task, answers)])


if __name__ == "__main__":
    _main()
