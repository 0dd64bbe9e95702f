"""Processes that run checks side by side. One that fails a check, crashes or stands still is replaced; nobody else notices."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Self

import msgspec

from mqlab.config import Settings, environment_of_checks
from mqlab.contract.messages import Outcome, Plan, Task
from mqlab.contract.options import CheckConfig
from mqlab.errors import ConfigError

_ANSWER = msgspec.json.Decoder(Plan | Outcome)
_START_S = 120.0
_GRACE_S = 1.0
_GRACE_SHARE = 1 / 6
_DUMP_S = 2.0
_READ_BYTES = 1 << 14
_MACHINERY = ("/asyncio/", "/_pytest/", "/pluggy/", "<frozen runpy>", "Extension modules:")
"""What lines of a stack are nobody's here."""


class Worker:
    """One process; blocks nowhere but in ``plan``.

    Attributes:
        fd: readable when it has answered, or ended.
        check: the name of the check that it runs; empty while it starts.
        idle: it waits to be told what to run.
    """

    def __init__(self, config: CheckConfig) -> None:
        self._config = config
        self.check = ""
        self.idle = False
        self._cleanup = contextlib.ExitStack()
        self._output = self._cleanup.enter_context(tempfile.TemporaryFile())  # noqa: SIM115
        # A folder of its own: some checks look at what is left in it, and every start sweeps it.
        place = Settings.read().runtime_dir
        runtime = self._cleanup.enter_context(tempfile.TemporaryDirectory(prefix="mqc-", dir=place, ignore_cleanup_errors=True))
        self.fd, answers = os.pipe()
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "mqlab.contract.worker", str(answers)],
                stdin=subprocess.PIPE,
                stdout=self._output,
                stderr=subprocess.STDOUT,
                pass_fds=(answers,),
                process_group=0,
                env=environment_of_checks(Path(runtime)),
            )
        finally:
            os.close(answers)
        self._rest = b""
        self._begin(_START_S)
        self._write(msgspec.json.encode(Task(sys.path, runtime, config)))

    def run(self, name: str) -> None:
        """Begin a check."""
        self.check, self.idle = name, False
        # The check itself is cancelled at the deadline, and tells where it waited; this is for an event loop that does not turn.
        self._begin(self._config.deadline * (1 + _GRACE_SHARE) + _GRACE_S)
        self._write(name.encode())

    def answer(self) -> Plan | Outcome | None:
        """What it said, or how it ended; None where it is still at it. Call when ``fd`` is readable, or time has passed."""
        ended = False
        if select.select([self.fd], [], [], 0)[0]:
            data = os.read(self.fd, 1 << 16)
            self._rest += data
            ended = not data
        line, newline, rest = self._rest.partition(b"\n")
        if newline:
            self._rest, self.idle = rest, True
            return self._with_output(_ANSWER.decode(line))
        if ended:
            return self._lost(f"the process ended {self._describe_end()}")
        if time.monotonic() > self._until:
            self._end_with_stacks()
            return self._lost("its event loop stood still, beyond the deadline; the process was ended")
        return None

    @property
    def patience_s(self) -> float:
        """Seconds that are left to it."""
        return max(0.0, self._until - time.monotonic())

    def close(self) -> None:
        """End it and all that it started."""
        assert self._process.stdin is not None
        self._signal(signal.SIGKILL)
        self._process.wait()
        self._process.stdin.close()
        self._cleanup.close()
        os.close(self.fd)

    def _begin(self, seconds: float) -> None:
        self._since = time.monotonic()
        self._until = self._since + seconds
        self._printed_before = os.fstat(self._output.fileno()).st_size

    def _write(self, line: bytes) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it has ended; ``answer`` tells
            self._process.stdin.write(line + b"\n")
            self._process.stdin.flush()

    def _with_output(self, answer: Plan | Outcome) -> Plan | Outcome:
        if isinstance(answer, Plan) or answer.passed:
            return answer
        return msgspec.structs.replace(answer, printed=self._printed())

    def _lost(self, how: str) -> Plan | Outcome:
        printed = self._printed()
        if not self.check:
            return Plan(error=f"{self._config.topology} could not be loaded: {how}\n{printed}".strip())
        return Outcome(self.check, time.monotonic() - self._since, how, printed=printed)

    def _printed(self) -> str:
        """The end of what it wrote since it began what it is at."""
        end = os.fstat(self._output.fileno()).st_size
        begin = max(self._printed_before, end - _READ_BYTES)
        lines = os.pread(self._output.fileno(), end - begin, begin).decode(errors="replace").splitlines()
        return "\n".join(line for line in lines if not any(name in line for name in _MACHINERY)).strip()

    def _end_with_stacks(self) -> None:
        # Its fault handler writes where every thread stands.
        self._process.send_signal(signal.SIGABRT)
        try:
            self._process.wait(_DUMP_S)
        except subprocess.TimeoutExpired:
            self._signal(signal.SIGKILL)

    def _describe_end(self) -> str:
        code = self._process.wait()
        return f"by {signal.Signals(-code).name}" if code < 0 else f"with status {code}"

    def _signal(self, number: int) -> None:
        """To its group, of which it is the leader until it is waited for; what it has started may outlive it."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)


class Pool:
    """As many workers as are of use, and the outcomes of what they run.

    Attributes:
        plan: what there is to check.

    Raises:
        ConfigError: no such topology, or it cannot be loaded.
    """

    def __init__(self, config: CheckConfig) -> None:
        self._config = config
        self._workers = [Worker(config)]
        try:
            self.plan = self._read_plan(self._workers[0])
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End all of them."""
        while self._workers:
            self._workers.pop().close()

    def run(self, names: Iterable[str]) -> Iterator[Outcome]:
        """The outcome of each check, as they come."""
        waiting = deque(names)
        while waiting or self._busy():
            self._hand_out(waiting)
            yield from self._collect()

    def _busy(self) -> list[Worker]:
        return [worker for worker in self._workers if not worker.idle]

    def _hand_out(self, waiting: deque[str]) -> None:
        for worker in self._workers:
            if worker.idle and waiting:
                worker.run(waiting.popleft())
        starting = [worker for worker in self._workers if not worker.check]
        if len(waiting) > len(starting) and len(self._workers) < self._config.processes:
            self._workers.append(Worker(self._config))

    def _collect(self) -> Iterator[Outcome]:
        """Wait for something to happen."""
        busy = self._busy()
        ready, _, _ = select.select([worker.fd for worker in busy], [], [], min(worker.patience_s for worker in busy))
        for worker in busy:
            answer = worker.answer() if worker.fd in ready or not worker.patience_s else None
            if isinstance(answer, Plan) and answer.error:
                raise ConfigError(answer.error)
            if isinstance(answer, Outcome):
                if not answer.passed:
                    self._workers.remove(worker)
                    worker.close()
                yield answer

    def _read_plan(self, worker: Worker) -> Plan:
        answer = None
        while answer is None:
            select.select([worker.fd], [], [], worker.patience_s)
            answer = worker.answer()
        assert isinstance(answer, Plan)
        if answer.error:
            raise ConfigError(answer.error)
        return answer
