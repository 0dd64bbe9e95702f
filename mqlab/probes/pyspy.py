"""py-spy from the outside: samples the stacks of running Python processes, whichever thread is busy, without their help.

It attaches at any time; the target stands still for the moment that each sample takes.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import ExitStack
from datetime import datetime
from functools import partial
from pathlib import Path

from mqlab.bars import progress_bar
from mqlab.config import Settings
from mqlab.errors import ProfileError
from mqlab.probes.reserve import reserved
from mqlab.probes.sampler import Sampler
from mqlab.probes.targets import labelled, with_children
from mqlab.record.capture import Capture, How
from mqlab.record.part import Part
from mqlab.wire.tracing import allow_tracing

__all__ = ["Capture", "find_binary", "new_folder", "record"]

_MAX_SECONDS = 3600
_MAX_RATE = 1000
_POLL_S = 0.02


def record(
    targets: int | Mapping[str, int],
    seconds: int,
    folder: Path,
    *,
    rate: int = 100,
    idle: bool = False,
    native: bool = False,
    gil: bool = False,
    children: bool = False,
    progress: bool = False,
    stop: threading.Event | None = None,
    until_stopped: bool = False,
) -> Capture:
    """Sample processes for ``seconds`` and save the capture in ``folder``. Blocks for that long.

    What could be sampled is kept and what could not is said: processes that end meanwhile or refuse, samples that fail. An interrupt
    (Ctrl-C, a notebook's stop button) ends the capture early and keeps what was seen, if anything was.

    Args:
        targets: a pid, or pids by the name that they get in the picture.
        seconds: 1 to 3600; py-spy counts in whole ones.
        folder: made where it is missing.
        rate: samples a second, 1 to 1000.
        idle: waiting threads as well as running ones.
        native: C frames as well (Linux on x86-64); takes longer to begin.
        gil: only the thread that holds the interpreter's lock.
        children: the Python processes below the targets as well.
        progress: show a bar.
        stop: setting it ends the capture early; an interrupt sets it.
        until_stopped: that is no accident: ``seconds`` is only a bound.

    Raises:
        ProfileError: no py-spy, no permission, no such process, or a target is being sampled already: nothing could be sampled.
        KeyboardInterrupt: interrupted before anything was seen.
    """
    named = labelled(targets)
    how = _checked(How(seconds, rate, idle, native, gil, until_stopped))
    binary = find_binary()
    if os.getpid() in named.values():
        allow_tracing()  # py-spy will be a child of this process, and none of its ancestors
    made = datetime.now().astimezone().isoformat(timespec="seconds")
    named, skipped = with_children(named) if children else (named, [])
    with reserved(named.values()):
        parts, failures = _interruptible(partial(_sample, binary, named, how, progress), stop or threading.Event())
    if not parts:
        raise ProfileError(failures[0] if failures else "the capture was stopped before it began")
    return Capture(tuple(parts), how, folder, (*failures, *skipped), made).save(folder)


def new_folder() -> Path:
    """Where a capture goes that is given no folder: a new one in mqlab's cache."""
    return Settings.read().cache_dir / "captures" / f"{datetime.now():%Y%m%d-%H%M%S-%f}"


def find_binary() -> Path:
    """The py-spy of this environment, else of the search path.

    Raises:
        ProfileError: there is none.
    """
    beside = Path(sys.executable).with_name("py-spy")
    found = str(beside) if beside.is_file() else shutil.which("py-spy")
    if found is None:
        raise ProfileError(f"py-spy is neither beside {sys.executable} nor on PATH: pip install py-spy")
    return Path(found)


def _checked(how: How) -> How:
    if not isinstance(how.seconds, int) or not 1 <= how.seconds <= _MAX_SECONDS:
        raise ProfileError(f"seconds={how.seconds!r} must be a whole number of seconds, at least 1 and at most {_MAX_SECONDS}")
    if not isinstance(how.rate, int) or not 1 <= how.rate <= _MAX_RATE:
        raise ProfileError(f"rate={how.rate!r} must be a whole number of samples a second, at least 1 and at most {_MAX_RATE}")
    return how


Sampled = tuple[list[Part], list[str]]


def _interruptible(sample: Callable[[threading.Event], Sampled], stop: threading.Event) -> Sampled:
    """Sample in a thread, where no KeyboardInterrupt can come between a sampler and its end."""
    begun = threading.Event()  # nothing is started before the thread's future is in hand
    sampled: Future[Sampled] | None = None

    def work() -> Sampled:
        begun.wait()
        return ([], []) if stop.is_set() else sample(stop)

    with ThreadPoolExecutor(1, "mqlab-sampling") as thread:
        try:
            sampled = thread.submit(work)
            begun.set()
            while not sampled.done():
                wait((sampled,), _POLL_S)  # an interrupt just before a wait without limit would not end it
            return sampled.result()
        except KeyboardInterrupt:
            stop.set()
            begun.set()
            parts, failures = sampled.result() if sampled else ([], [])
            if any(part.stacks.total for part in parts):
                return parts, failures
            raise


def _sample(binary: Path, named: Mapping[str, int], how: How, progress: bool, stop: threading.Event) -> Sampled:
    with ExitStack() as cleanup:  # whatever happens, no sampler outlives this
        scratch = Path(cleanup.enter_context(tempfile.TemporaryDirectory(prefix="mqlab-pyspy-")))
        samplers: list[Sampler] = []
        for role, pid in named.items():
            samplers.append(Sampler(binary, role, pid, how, scratch / str(pid)))
            cleanup.callback(samplers[-1].close)
        _attend(samplers, how.seconds, progress, stop)
        return _collect(samplers)


def _attend(samplers: Sequence[Sampler], seconds: int, progress: bool, stop: threading.Event) -> None:
    """Wait until all have ended."""
    with progress_bar("sampling", shown=progress, total=seconds, unit="s", bar_format="{desc} {bar} {n:.0f} of {total} s") as bar:
        while sum(not sampler.poll() for sampler in samplers):
            if stop.is_set():
                for sampler in samplers:
                    sampler.interrupt()
            time.sleep(_POLL_S)
            bar.update(min(_POLL_S, seconds - bar.n))


def _collect(samplers: Sequence[Sampler]) -> Sampled:
    parts: list[Part] = []
    failures: list[str] = []
    for sampler in samplers:
        try:
            parts.append(sampler.result())
        except ProfileError as error:
            failures.append(str(error))
    return parts, failures
