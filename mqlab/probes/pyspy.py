"""py-spy from the outside: samples the stacks of running Python processes, whichever thread is busy, without their help.

It attaches at any time; the target stands still for the moment that each sample takes.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from html import escape
from pathlib import Path

from mqlab.errors import ProfileError
from mqlab.record.flame import Share, Stacks, draw
from mqlab.wire.tracing import allow_tracing

_SLACK_S = 15.0
_MAX_SECONDS = 3600

_FALLBACK = "the engine's own start_profile and stop_profile calls need no permission"
# As py-spy 0.4 writes them. A shell that may not start py-spy says "Permission denied", without a number.
_REFUSED = ("Permission Denied", "(os error 13)", "Operation not permitted", "requires root")
_REMEDY = {
    "linux": "run as the same user as the target; on Linux set 'sysctl kernel.yama.ptrace_scope=0', "
    "in a container add '--cap-add=SYS_PTRACE', or run as root",
    "darwin": "macOS lets only root attach: start Jupyter with 'sudo', with a Python that is not the system's own",
}

_sampled: set[int] = set()
_sampled_lock = threading.Lock()


@dataclass(frozen=True)
class Capture:
    """Stacks sampled from one or more processes, as files and as a picture.

    Attributes:
        seconds: how long was sampled.
        stacks: samples by stack; the outermost frames are process and thread.
        raw: the folded stacks, for flamegraph.pl or speedscope.
        svg: the flame graph.
    """

    seconds: int
    stacks: Stacks
    raw: Path
    svg: Path

    def top(self, n: int = 10) -> list[Share]:
        """The ``n`` functions with the most samples of their own."""
        return self.stacks.top(n)

    def __repr__(self) -> str:
        return f"Capture({self.stacks.total} samples in {self.seconds} s, {self.svg})"

    def _repr_html_(self) -> str:
        rows = "".join(
            f'<tr><td style="text-align:right">{share.own:.1%}</td><td style="text-align:right">{share.total:.1%}</td>'
            f'<td style="text-align:left"><code>{escape(share.frame)}</code></td></tr>'
            for share in self.top(8)
        )
        head = '<tr><th>own</th><th>total</th><th style="text-align:left">function</th></tr>'
        table = f"<details><summary>{escape(repr(self))}</summary><table>{head}{rows}</table></details>"
        return f'<figure style="margin:0">{draw(self.stacks, _title(self.stacks, self.seconds))}{table}</figure>'


def record(targets: int | Mapping[str, int], seconds: int, folder: Path, *, rate: int = 100) -> Capture:
    """Sample processes for ``seconds`` and write stacks.txt and flame.svg into ``folder``. Blocks for that long.

    Args:
        targets: a pid, or pids by the name that they get in the picture.
        seconds: 1 to 3600; py-spy counts in whole ones.
        folder: made where it is missing.
        rate: samples a second, of all threads that are not idle.

    Raises:
        ProfileError: no py-spy, no permission, no such process, a target is being sampled already, or nothing was seen.
    """
    named = {f"process {targets}": targets} if isinstance(targets, int) else dict(targets)
    if not isinstance(seconds, int) or not 1 <= seconds <= _MAX_SECONDS:
        raise ProfileError(f"seconds={seconds!r} must be a whole number of seconds, at least 1 and at most {_MAX_SECONDS}")
    binary = find_binary()
    if os.getpid() in named.values():
        allow_tracing()  # py-spy will be a child of this process, and none of its ancestors
    with _reserved(named.values()), tempfile.TemporaryDirectory(prefix="mqlab-pyspy-") as scratch:
        stacks = Stacks.merge(_sample_all(binary, named, seconds, rate, Path(scratch)))
    if not stacks.total:
        raise ProfileError(f"no thread of {', '.join(named)} was busy in {seconds} s: send requests while the capture runs")
    return _save(stacks, seconds, folder)


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


@contextmanager
def _reserved(pids: Iterable[int]) -> Iterator[None]:
    wanted = set(pids)
    with _sampled_lock:
        taken = wanted & _sampled
        if taken:
            raise ProfileError(f"process {min(taken)} is being sampled already: wait until that capture ends")
        _sampled.update(wanted)
    try:
        yield
    finally:
        with _sampled_lock:
            _sampled.difference_update(wanted)


def _sample_all(binary: Path, named: Mapping[str, int], seconds: int, rate: int, scratch: Path) -> dict[str, Stacks]:
    with ExitStack() as cleanup:
        running = {name: cleanup.enter_context(_sampler(binary, pid, seconds, rate, scratch / str(pid))) for name, pid in named.items()}
        return {name: _collect(process, named[name], seconds, scratch / str(named[name])) for name, process in running.items()}


@contextmanager
def _sampler(binary: Path, pid: int, seconds: int, rate: int, output: Path) -> Iterator[subprocess.Popen[str]]:
    """A running py-spy; leaving early ends and reaps it."""
    what = ["--pid", str(pid), "--duration", str(seconds), "--rate", str(rate)]
    how = ["--format", "raw", "--threads", "--nolineno", "--output", str(output)]
    process = _launch([str(binary), "record", *what, *how])
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def _launch(command: list[str]) -> subprocess.Popen[str]:
    try:
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    except OSError as error:
        raise ProfileError(f"py-spy cannot be started: {error}; pip install --force-reinstall py-spy") from error


def _collect(process: subprocess.Popen[str], pid: int, seconds: int, output: Path) -> Stacks:
    try:
        _, errors = process.communicate(timeout=seconds + _SLACK_S)
    except subprocess.TimeoutExpired:
        raise ProfileError(f"py-spy did not end within {_SLACK_S:g} s after {seconds} s of sampling process {pid}; it was killed") from None
    if process.returncode != 0 or not output.is_file():
        raise ProfileError(_explain(errors, pid))
    try:
        return Stacks.load(output)
    except ValueError as error:
        raise ProfileError(f"what py-spy wrote of process {pid} cannot be read: {error}") from error


def _explain(errors: str, pid: int) -> str:
    """One sentence for what py-spy wrote to stderr; its own backtrace says nothing to a user."""
    if any(words in errors for words in _REFUSED):
        remedy = _REMEDY.get(sys.platform, "run with the right to attach to other processes")
        return f"py-spy may not attach to process {pid}: {remedy}; {_FALLBACK}"
    lowered = errors.lower()
    if "check that the process is running" in lowered or "no such process" in lowered:
        return f"process {pid} is not running: nothing can be sampled; start it first"
    first = next((line.removeprefix("Error: ").strip() for line in errors.splitlines() if line.strip()), "it said nothing")
    return f"py-spy could not sample process {pid}: {first}"


def _save(stacks: Stacks, seconds: int, folder: Path) -> Capture:
    folder.mkdir(parents=True, exist_ok=True)
    capture = Capture(seconds, stacks, folder / "stacks.txt", folder / "flame.svg")
    stacks.save(capture.raw)
    capture.svg.write_text(draw(stacks, _title(stacks, seconds)), encoding="utf-8")
    return capture


def _title(stacks: Stacks, seconds: int) -> str:
    return f"{stacks.total} samples in {seconds} s of busy threads"
