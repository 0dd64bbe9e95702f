"""The parent's end of the processes in which the device bench measures: a kernel that crashes or hangs costs its own job, and no other."""

from __future__ import annotations

import os
import pickle
import select
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import IO, Any, Self

from mqlab.bench.device.worker import HEAD_BYTES
from mqlab.config import environment_of_jobs
from mqlab.wire.spawn import spawn
from mqlab.wire.spec import Spec

_END_S = 5.0
_TAIL_BYTES = 1500


@dataclass(frozen=True)
class Answer:
    """What a job gave, and why it gave no more where it failed."""

    rows: list[Any]
    error: str = ""


class Jobs:
    """Runs jobs one after the other, in one process for as long as they succeed: the next one after a failure gets a new process."""

    def __init__(self) -> None:
        self._process: _Process | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.rest()

    def run(self, job: Spec, limit_s: float) -> Answer:
        """One job, for ``limit_s`` at most. Never raises for what the job does."""
        if self._process is None:
            self._process = _Process()
        answer = self._process.run(job, limit_s)
        if answer.error:
            self.rest()
        return answer

    def rest(self) -> None:
        """End the process, and give back what it holds of the device."""
        process, self._process = self._process, None
        if process is not None:
            process.close()


class _Process:
    def __init__(self) -> None:
        self._log = tempfile.TemporaryFile()  # noqa: SIM115
        self._answers, writing = os.pipe()
        try:
            self._process = spawn(
                [sys.executable, "-P", "-m", "mqlab.bench.device.worker", str(writing)],
                stdin=subprocess.PIPE,
                stdout=self._log,
                stderr=subprocess.STDOUT,
                pass_fds=(writing,),
                start_new_session=True,
                env=environment_of_jobs(),
            )
        except BaseException:
            os.close(self._answers)
            self._log.close()
            raise
        finally:
            os.close(writing)
        self._write(sys.path)

    def run(self, job: Spec, limit_s: float) -> Answer:
        """See Jobs."""
        self._write(job)
        until = time.monotonic() + limit_s
        try:
            head = self._read(HEAD_BYTES, until)
            rows, error = pickle.loads(self._read(int.from_bytes(head), until))
            return Answer(rows, error)
        except TimeoutError:
            self._process.kill()
            return Answer([], f"not done within {limit_s:.0f} s; its process was ended")
        except EOFError:
            return Answer([], self._end())

    def close(self) -> None:
        """End it."""
        with suppress(BrokenPipeError):
            self._stdin.close()
        try:
            self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._answers)
        self._log.close()

    @property
    def _stdin(self) -> IO[bytes]:
        assert self._process.stdin is not None
        return self._process.stdin

    def _write(self, value: object) -> None:
        with suppress(BrokenPipeError):  # it has ended; the answer that does not come tells
            self._stdin.write(pickle.dumps(value))
            self._stdin.flush()

    def _read(self, count: int, until: float) -> bytes:
        data = b""
        while len(data) < count:
            if not select.select([self._answers], [], [], max(0.0, until - time.monotonic()))[0]:
                raise TimeoutError
            piece = os.read(self._answers, count - len(data))
            if not piece:
                raise EOFError
            data += piece
        return data

    def _end(self) -> str:
        code = self._process.wait()
        how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        self._log.seek(0)
        said = self._log.read()[-_TAIL_BYTES:].decode(errors="replace").split("\n")
        last = [line.strip() for line in said if line.strip()][-1:]
        return ": ".join([f"its process {how}", *last])
