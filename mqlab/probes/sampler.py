"""One py-spy at work on one process: started, watched without blocking, interrupted, read."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from mqlab.errors import ProfileError
from mqlab.probes.targets import has_ended, python_version
from mqlab.probes.threadtimes import ThreadTimes
from mqlab.record.capture import How, parse_raw
from mqlab.record.flame import Stacks
from mqlab.record.part import Part
from mqlab.wire.spawn import spawn

START_S = 10.0
NATIVE_START_S = 60.0
"""How long py-spy may take to find the interpreter; with native frames it reads the symbols of every library."""

LATE_S = 0.5
"""How much longer than asked for a sampler may take before it is told to stop."""

STOP_S = 5.0
"""How long it may take to write its stacks after that."""

_LOOK_S = 0.25
_STOPPED, _LATE, _ENDED, _STUCK = "stopped early", "fell behind", "the process ended", "it did not"
_FALLBACK = "the engine's own start_profile and stop_profile calls need no permission"
# As py-spy 0.4 writes them. A shell that may not start py-spy says "Permission denied", without a number.
_REFUSED = ("Permission Denied", "(os error 13)", "Operation not permitted", "requires root")
_REMEDY = {
    "linux": "run as the same user as the target; on Linux set 'sysctl kernel.yama.ptrace_scope=0', "
    "in a container add '--cap-add=SYS_PTRACE', or run as root",
    "darwin": "macOS lets only root attach: start Jupyter with 'sudo', with a Python that is not the system's own",
}
_BEGUN = "Sampling process"
_BEHIND = re.compile(r"([\d.]+)s behind in sampling")
_FAILED = re.compile(r"Errors: (\d+)")
_THREAD = re.compile(r"^thread \((\w+)\)(?:: ([^;\n]*))?", re.MULTILINE)


@dataclass
class _Clock:
    """Seconds of CLOCK_MONOTONIC; None until it happened."""

    launched: float
    begun: float | None = None
    told: float | None = None
    ended: float | None = None


class Sampler:
    """Samples a process from construction on; ``close`` ends and reaps it whatever its state.

    Raises:
        ProfileError: py-spy cannot be started.
    """

    def __init__(self, binary: Path, role: str, pid: int, how: How, scratch: Path) -> None:
        scratch.mkdir()
        self.role, self.pid = role, pid
        self._how = how
        self._output, self._said, self._complained = (scratch / name for name in ("stacks", "stdout", "stderr"))
        self._python = python_version(pid)
        self._times = ThreadTimes(pid)
        self._looked = 0.0
        self._clock = _Clock(time.monotonic())
        self._why = ""
        self._process = self._launch([str(binary), "record", *_options(pid, how), "--output", str(self._output)])

    def _launch(self, command: list[str]) -> subprocess.Popen[bytes]:
        with self._said.open("wb") as out, self._complained.open("wb") as errors:
            try:
                # In a group of its own, so that Ctrl-C at the terminal reaches it through ``interrupt`` only.
                return spawn(command, stdin=subprocess.DEVNULL, stdout=out, stderr=errors, process_group=0)
            except OSError as error:
                raise ProfileError(f"py-spy cannot be started: {error}; pip install --force-reinstall py-spy") from error

    def poll(self) -> bool:
        """Look after it; returns whether it has ended. To be called a few times a second."""
        now = time.monotonic()
        if self._clock.ended is None and self._process.poll() is not None:
            self._clock.ended = now
        if self._clock.ended is not None:
            return True
        if self._clock.begun is None:
            self._await_begin(now)
        elif now - self._looked >= _LOOK_S:
            self._look(now)
        self._enforce(now)
        return False

    def interrupt(self, why: str = _STOPPED) -> None:
        """Have it stop sampling and write what it has; ``poll`` tells when that is done."""
        if self._clock.told is None and self._process.poll() is None:
            self._why = why
            self._clock.told = time.monotonic()
            self._process.send_signal(signal.SIGINT)

    def close(self) -> None:
        """End it now."""
        self._end_group()
        self._process.wait()

    def result(self) -> Part:
        """What it saw, once it has ended.

        Raises:
            ProfileError: nothing, and why.
        """
        said, complained = _text(self._said), _text(self._complained)
        if self._why.startswith(_STUCK):
            raise ProfileError(f"py-spy could not sample process {self.pid}: {self._why}; it was killed")
        if self._process.returncode != 0 or not self._output.is_file():
            raise ProfileError(explain(complained or said, self.pid))
        text = _text(self._output)
        try:
            stacks = parse_raw(text)
        except ValueError as error:
            raise ProfileError(f"what py-spy wrote of process {self.pid} cannot be read: {error}") from error
        return self._part(stacks, text, said + complained)

    def _await_begin(self, now: float) -> None:
        if _BEGUN in _text(self._said):
            self._clock.begun = self._looked = now
            self._times.begin()

    def _look(self, now: float) -> None:
        self._looked = now
        self._times.update()
        if has_ended(self.pid):  # py-spy goes on looking at a zombie
            self.interrupt(_ENDED)

    def _enforce(self, now: float) -> None:
        clock = self._clock
        limit = NATIVE_START_S if self._how.native else START_S
        if clock.told is not None:
            if now - clock.told > STOP_S:
                self._kill(f"{_STUCK} write its stacks within {STOP_S:g} s")
        elif clock.begun is None:
            if now - clock.launched > limit:
                self._kill(f"{_STUCK} begin within {limit:g} s")
        elif now - clock.begun > self._how.seconds + LATE_S:
            self.interrupt(_LATE)

    def _kill(self, why: str) -> None:
        self._why = why
        self._end_group()

    def _end_group(self) -> None:
        if self._process.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)

    def _seconds(self, said: str) -> float:
        """How long it sampled."""
        clock = self._clock
        end = clock.told or (clock.ended if "process exited" in said else None)
        asked = float(self._how.seconds)
        return asked if end is None or clock.begun is None else min(max(end - clock.begun, 0.01), asked + LATE_S)

    def _part(self, stacks: Stacks, text: str, said: str) -> Part:
        self._times.update()
        seconds = self._seconds(said)
        behind = [float(found) for found in _BEHIND.findall(said)]
        busiest = max((thread.total for thread in Part(self.role, stacks, 0).threads().values()), default=0)
        failed = _FAILED.search(said)
        return Part(
            self.role,
            stacks,
            ticks=max(busiest, round((seconds - (behind[-1] if behind else 0.0)) * self._how.rate)),
            pid=self.pid,
            seconds=seconds,
            cpu_s=self._times.cpu_s({int(tid, 0): name or "thread" for tid, name in _THREAD.findall(text)}),
            queued_s=self._times.queued_s,
            errors=int(failed[1]) if failed else 0,
            python=self._python,
            notes=tuple(self._notes(said, seconds, behind, int(failed[1]) if failed else 0, stacks)),
        )

    def _notes(self, said: str, seconds: float, behind: list[float], failed: int, stacks: Stacks) -> list[str]:
        partial = f"partial, {seconds:.1f} of {self._how.seconds} s"
        ended = self._why == _ENDED or ("process exited" in said and seconds < self._how.seconds - LATE_S)
        notes = [
            (self._why == _STOPPED and not self._how.until_stopped, f"{partial}: stopped early"),
            (ended, f"{partial}: process {self.pid} ended"),
            (bool(behind), f"py-spy fell up to {max(behind, default=0):.1f} s behind {self._how.rate:g} samples a second: lower the rate"),
            (self._why == _LATE and not behind, f"py-spy was slow and was stopped after {seconds:.1f} s"),
            (failed > 0, f"{failed} samples failed and are left out"),
            (not stacks.total, f"no thread ran when it was looked at, in {seconds:.1f} s"),
        ]
        return [note for holds, note in notes if holds]


def _options(pid: int, how: How) -> list[str]:
    flags = [f"--{name}" for name in ("idle", "native", "gil") if getattr(how, name)]
    what = ["--pid", str(pid), "--duration", str(how.seconds), "--rate", f"{how.rate:g}"]
    return [*what, "--format", "raw", "--threads", "--nolineno", *flags]


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace")


def explain(errors: str, pid: int) -> str:
    """One sentence for what py-spy wrote to stderr; its own backtrace says nothing to a user."""
    if any(words in errors for words in _REFUSED):
        remedy = _REMEDY.get(sys.platform, "run with the right to attach to other processes")
        return f"py-spy may not attach to process {pid}: {remedy}; {_FALLBACK}"
    lowered = errors.lower()
    if "check that the process is running" in lowered or "no such process" in lowered:
        return f"process {pid} is not running: nothing can be sampled; start it first"
    if "unsupported version of python" in lowered or "failed to find python version" in lowered:
        return f"py-spy does not know the Python of process {pid} ({_first_line(errors)}): pip install --upgrade py-spy; {_FALLBACK}"
    return f"py-spy could not sample process {pid}: {_first_line(errors)}"


def _first_line(errors: str) -> str:
    return next((line.removeprefix("Error: ").strip() for line in errors.splitlines() if line.strip()), "it said nothing")
