"""The servers that are measured: started, found ready, and ended whatever happens."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from io import BufferedReader
from typing import IO, cast

import msgspec
import psutil

from mqlab.bench.frontend.options import FrontendConfig, Load
from mqlab.bench.frontend.probe import Answer
from mqlab.bench.frontend.setups import FLOOR_READY, FloorSetup, ServedSetup
from mqlab.errors import BenchError, ConfigError
from mqlab.wire.spawn import spawn

_SERVING = re.compile(rb"mqlab serving .+ on (http://\S+) \(topology \S+, engine pid (\d+)\)")
_FLOOR = re.compile(re.escape(FLOOR_READY.encode()) + rb"(http://\S+) \(steps pid (\d+)\)")
_STOP_S = 15.0
_TAIL = 2000


@dataclass(frozen=True)
class Target:
    """A server that answers.

    Attributes:
        front: pids of its front, by name; what they started counts with them where it is not in ``engine``.
        engine: pids of what stands behind it.
    """

    url: str
    front: dict[str, int]
    engine: dict[str, int] = field(default_factory=dict)

    @property
    def processes(self) -> dict[str, int]:
        """All of them."""
        return {**self.front, **self.engine}

    @property
    def front_pids(self) -> list[int]:
        """Every process that belongs to the front now."""
        apart = set(self.engine.values())
        return [pid for root in self.front.values() for pid in _tree(psutil.Process(root), apart)]


def _tree(process: psutil.Process, apart: set[int]) -> list[int]:
    below = [pid for child in process.children() if child.pid not in apart for pid in _tree(child, apart)]
    return [process.pid, *below]


@contextmanager
def mqlab_server(config: FrontendConfig, load: Load) -> Iterator[Target]:
    """mqlab's own server, with a core that runs all streams of a load at once.

    Raises:
        BenchError: it did not start.
    """
    setup = ServedSetup(
        model=config.model,
        topology=config.topology,
        api_server_count=config.api_server_count,
        record=config.record,
        streams=load.streams,
        step_s=load.step_s,
    )
    with _started("mqlab.bench.frontend.served", setup) as process:
        url, engine = process.wait(_SERVING)
        yield Target(url, {"front": process.pid}, {"engine": int(engine)})


@contextmanager
def floor_server(answer: Answer, load: Load) -> Iterator[Target]:
    """The floor, with chunks as those of an answer.

    Raises:
        BenchError: it did not start.
    """
    setup = FloorSetup(head=answer.head, chunk=answer.chunk, tail=answer.tail, step_s=load.step_s)
    with _started("mqlab.bench.frontend.floor", setup) as process:
        url, steps = process.wait(_FLOOR)
        yield Target(url, {"front": process.pid}, {"engine": int(steps)})


def running_server(config: FrontendConfig) -> Target:
    """The server that ``--url`` and ``--pid`` name.

    Raises:
        ConfigError: one of the processes does not run.
    """
    assert config.url is not None, "asked only where it is given"
    try:
        roots = [psutil.Process(int(pid)) for pid in config.pid]
    except psutil.NoSuchProcess as error:
        raise ConfigError(f"--pid={error.pid} is no process of this machine; give those of the server's front") from None
    return Target(config.url.rstrip("/"), {f"front {root.pid}": root.pid for root in roots}, children_of(roots))


def children_of(roots: Sequence[psutil.Process]) -> dict[str, int]:
    """The processes that a front has started, by name, without those that are the front's themselves."""
    own = {root.pid for root in roots}
    return {f"engine {child.pid}": child.pid for root in roots for child in root.children() if child.pid not in own}


class Process:
    """A server in a process group of its own."""

    def __init__(self, command: Sequence[str], log: IO[bytes]) -> None:
        self._log = log
        self._popen = spawn(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, process_group=0)
        self.pid = self._popen.pid

    def wait(self, line: re.Pattern[bytes]) -> tuple[str, str]:
        """Both groups of the line that says that it is ready.

        Raises:
            BenchError: it ended instead.
        """
        for said in cast(BufferedReader, self._popen.stdout):
            if found := line.search(said):
                return found[1].decode(), found[2].decode()
        raise self.failed()

    def failed(self) -> BenchError:
        """What to raise where it ended too early."""
        code = self._popen.wait()
        return BenchError(f"the server to be measured ended with exit code {code} before it was ready:\n{self.last_words()}")

    def ended(self, within: float = 0.0) -> bool:
        """Whether it has, or does within so many seconds."""
        try:
            self._popen.wait(within)
        except subprocess.TimeoutExpired:
            return False
        return True

    def last_words(self) -> str:
        """The end of what it wrote to stderr."""
        self._log.seek(0)
        return self._log.read()[-_TAIL:].decode(errors="replace").strip()

    def stop(self) -> None:
        """SIGTERM, and after a while SIGKILL for all of its group."""
        below = psutil.Process(self.pid).children(recursive=True) if not self.ended() else []
        self._popen.terminate()
        try:
            self._popen.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            os.killpg(self.pid, signal.SIGKILL)
            self._popen.wait()
        for child in psutil.wait_procs(below, timeout=_STOP_S)[1]:
            child.kill()
        for pipe in (self._popen.stdin, self._popen.stdout):
            cast(IO[bytes], pipe).close()


@contextmanager
def process(command: Sequence[str]) -> Iterator[Process]:
    """A server while the block runs."""
    with tempfile.TemporaryFile() as log:
        one = Process(command, log)
        try:
            yield one
        finally:
            one.stop()


def _started(module: str, setup: msgspec.Struct) -> AbstractContextManager[Process]:
    return process([sys.executable, "-P", "-m", module, msgspec.json.encode(setup).decode()])
