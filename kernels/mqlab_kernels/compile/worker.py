"""Processes that compile: each does one job at a time, and is ended where a job takes too long."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

from mqlab_kernels import catalogue
from mqlab_kernels.compile.compiler import compile_kernel


class Job(NamedTuple):
    """One compilation: the kernel's name, the places of its case and of its config among the kernel's, and a compute capability."""

    kernel: str
    case: int
    config: int
    capability: int


class Worker:
    """A process that compiles, without ``TRITON_INTERPRET`` whatever the caller has; ends with ``with``."""

    def __init__(self, folder: Path, timeout_s: float) -> None:
        """``folder`` takes Triton's cache and temporary files; ``timeout_s`` bounds each job."""
        self._folder, self._timeout_s = folder, timeout_s
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._end()

    def run(self, job: Job) -> dict[str, Any]:
        """What it takes, as ``Resources.as_dict`` with "seconds", or "error": why it could not be compiled."""
        process = self._process = self._process or self._start()
        assert process.stdin is not None and process.stdout is not None
        began = time.monotonic()
        process.stdin.write(json.dumps(job) + "\n")
        process.stdin.flush()
        if not select.select([process.stdout], [], [], self._timeout_s)[0]:
            self._end()
            return {"error": f"not compiled within {self._timeout_s:g} s"}
        answer = process.stdout.readline()
        if not answer:
            self._end()
            return {"error": "the compiler died"}
        return {**json.loads(answer), "seconds": round(time.monotonic() - began, 2)}

    def interrupt(self) -> None:
        """Let the job at hand fail, from another thread."""
        if (process := self._process) is not None:
            _kill(process)

    def _start(self) -> subprocess.Popen[str]:
        """A process group, which ends with all that the compiler started. It has answered once: imports are no part of a job."""
        environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
        environment |= {"TRITON_CACHE_DIR": str(self._folder), "TMPDIR": str(self._folder)}
        command = [sys.executable, "-m", __name__]
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment, start_new_session=True
        )
        assert process.stdout is not None
        if not process.stdout.readline():
            raise RuntimeError("the process that compiles did not start: its error is above")
        return process

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        _kill(process)
        process.communicate()


def _kill(process: subprocess.Popen[str]) -> None:
    """End a process, unless it was waited for, with all that it started."""
    if process.returncode is None:
        os.killpg(process.pid, signal.SIGKILL)


def _work() -> None:
    """Answer each job read with a line; what compilers print goes nowhere."""
    catalogue.kernels()
    answers, sys.stdout = os.fdopen(os.dup(1), "w"), open(os.devnull, "w")  # noqa: PTH123, SIM115 - for as long as the process
    print("ready", file=answers, flush=True)
    os.dup2(sys.stdout.fileno(), 1)
    os.dup2(sys.stdout.fileno(), 2)
    for line in sys.stdin:
        print(json.dumps(_answer(Job(*json.loads(line)))), file=answers, flush=True)


def _answer(job: Job) -> dict[str, Any]:
    kernel = catalogue.kernel(job.kernel)
    try:
        return compile_kernel(kernel, kernel.cases[job.case], kernel.sweep[job.config], job.capability).as_dict()
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}".strip().splitlines()[-1][:200]}


if __name__ == "__main__":
    _work()
