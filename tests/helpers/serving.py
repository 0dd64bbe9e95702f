"""A whole server on the test's own event loop, over an engine that echoes the prompt; and servers in processes of their own."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
from openai import AsyncOpenAI

from mqlab.client.base import BaseClient
from mqlab.config import ServerConfig, Timing
from mqlab.contract.waiting import until_sync
from mqlab.front.frontend import Frontend
from mqlab.server.app import build_app
from mqlab.server.http.host import Host
from mqlab.server.http.listener import listening, url
from mqlab.server.state import ServerState
from mqlab.topologies import make_client
from mqlab.types import EngineStats
from mqlab.wire.spec import Spec
from mqlab.wire.wiring import Wiring

FAST = Timing(health_interval=0.05, idle_interval=0.05, stop_grace=0.5, stopped_limit=0.5)
LINE = re.compile(r"mqlab serving (\S+) on (\S+) \(topology (\S+), engine pid (\d+)\)")


@dataclass(frozen=True)
class Served:
    """A running server in this process."""

    url: str
    client: BaseClient
    state: ServerState

    @property
    def stats(self) -> EngineStats:
        """What the engine published last."""
        return self.client.glance()

    @asynccontextmanager
    async def openai(self) -> AsyncIterator[AsyncOpenAI]:
        """OpenAI's own client, without retries."""
        async with AsyncOpenAI(base_url=f"{self.url}/v1", api_key="none", max_retries=0, timeout=20) as client:
            yield client


def echo_wiring(model_folder: Path, timing: Timing = FAST, **core: Any) -> Wiring:
    """An engine that answers a prompt with the prompt, with the default model's tokenizer."""
    return Wiring(Spec("mqlab.engine.echo:build", {"path": str(model_folder), **core}), timing=timing)


@asynccontextmanager
async def serving(
    model_folder: Path, topology: str = "aio", *, server: Mapping[str, Any] | None = None, **core: Any
) -> AsyncIterator[Served]:
    """A server on a free port; ``server`` are settings of its own, ``core`` are the arguments of the echo core."""
    async with served_by(make_client(topology, echo_wiring(model_folder, **core)), **(server or {})) as served:
        yield served


@asynccontextmanager
async def served_by(engine: BaseClient, **settings: Any) -> AsyncIterator[Served]:
    """A server on a free port over a client that is not started yet; ``settings`` are ServerConfig's."""
    config = ServerConfig(**{"port": 0, **settings})
    if config.limit_concurrency is not None:
        engine.limit = config.limit_concurrency
    engine.max_pending = config.max_pending
    with listening(config) as listener:
        async with engine as client:
            state = ServerState(Frontend.of(client), config)
            host = Host(build_app(state), listener, config)
            await host.start()
            try:
                yield Served(url(config, listener), client, state)
            finally:
                await client.close()
                await host.stop(1.0)


@dataclass
class Process:
    """``mqlab`` in a process of its own, with its output in a file."""

    popen: subprocess.Popen[bytes]
    output: Path
    line: re.Match[str] | None = field(default=None)

    def text(self) -> str:
        """All that it wrote so far."""
        return self.output.read_text(errors="replace")

    def wait_ready(self, timeout: float = 60.0) -> Process:
        """Wait for its line."""
        until_sync(lambda: LINE.search(self.text()) or self.popen.poll() is not None, timeout)
        self.line = LINE.search(self.text())
        assert self.line is not None, self.text()
        return self

    @property
    def url(self) -> str:
        """Where it serves."""
        assert self.line is not None
        return self.line[2]

    @property
    def engine_pid(self) -> int:
        """The process that owns the core."""
        assert self.line is not None
        return int(self.line[4])

    def stop(self, timeout: float) -> int:
        """SIGTERM; its exit status."""
        self.popen.send_signal(signal.SIGTERM)
        return self.popen.wait(timeout)


@contextmanager
def running(command: Sequence[str], folder: Path) -> Iterator[Process]:
    """Run a command; whatever happens, it is gone afterwards."""
    output = folder / f"output-{len(list(folder.glob('output-*')))}.txt"
    with output.open("wb") as sink:
        popen = subprocess.Popen(command, stdout=sink, stderr=subprocess.STDOUT, env={**os.environ, "PYTHONUNBUFFERED": "1"})
    try:
        yield Process(popen, output)
    finally:
        children = psutil.Process(popen.pid).children(recursive=True) if popen.poll() is None else []
        popen.kill()
        popen.wait()
        psutil.wait_procs(children, timeout=5)


@contextmanager
def echo_server(model_folder: Path, folder: Path, **options: Any) -> Iterator[Process]:
    """A server with an echo engine that stays up while the block runs; ``options`` are those of echo_command."""
    with running(echo_command(model_folder, **options), folder) as process:
        yield process.wait_ready()
        process.stop(10)


def echo_command(
    model_folder: Path,
    *,
    port: int = 0,
    topology: str = "v1",
    drain_timeout: float = 1.0,
    timing: Timing = FAST,
    settings: Mapping[str, Any] | None = None,
    **core: Any,
) -> list[str]:
    """``mqlab serve`` with an echo engine; ``settings`` are further ones of ServerConfig."""
    server = {"port": port, "topology": topology, "drain_timeout": drain_timeout, **(settings or {})}
    code = f"""
import sys
from pathlib import Path
sys.path.insert(0, {str(Path(__file__).parent)!r})
from mqlab.config import EngineConfig, ServerConfig, Timing
from mqlab.errors import MqlabError
from mqlab.server.launch import serve
from serving import echo_wiring
config = ServerConfig(**{server!r})
try:
    timing = {timing!r}
    sys.exit(serve(EngineConfig(), config, timing, wiring=echo_wiring(Path({str(model_folder)!r}), timing, **{core!r})))
except MqlabError as error:
    sys.exit(f"{{type(error).__name__}}: {{error}}")
"""
    return [sys.executable, "-c", code]


def mqlab_command(*arguments: str) -> list[str]:
    """The command line as users type it."""
    return [sys.executable, "-c", "from mqlab.cli import entry; entry()", *arguments]


def accepts(url: str) -> bool:
    """Whether anybody listens there."""
    host, port = url.removeprefix("http://").split(":")
    try:
        socket.create_connection((host, int(port))).close()
    except OSError:
        return False
    return True
