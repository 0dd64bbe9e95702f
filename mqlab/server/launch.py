"""``mqlab serve``: from the settings to a running server, and back to nothing, in bounded time."""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import signal
import socket
from collections.abc import AsyncIterator, Iterator
from dataclasses import asdict
from pathlib import Path
from types import FrameType

import uvloop

from mqlab.client.base import BaseClient
from mqlab.client.local import LocalClient
from mqlab.config import EngineConfig, ServerConfig, Settings, Timing
from mqlab.errors import EngineDeadError
from mqlab.front.frontend import Frontend
from mqlab.front.textmodel import TextModel
from mqlab.models.resolve import resolve
from mqlab.probes.base import attempt
from mqlab.probes.recording import begin_recording
from mqlab.record.metadata import write_meta
from mqlab.server.app import build_app
from mqlab.server.host import Host
from mqlab.server.listener import listen, url
from mqlab.server.native import Door
from mqlab.server.signals import Signals, first
from mqlab.server.state import ServerState
from mqlab.topologies import make_client
from mqlab.types import ModelInfo
from mqlab.wire.native import SOCKET
from mqlab.wire.registry import Entry, Registry
from mqlab.wire.rundir import RunDir
from mqlab.wire.wiring import Wiring

DEATH_GRACE_S = 3.0
"""How long a server whose engine died goes on saying so before it ends."""

_FLUSH_S = 0.5
_HEALTH_POLL_S = 0.25


def serve(engine: EngineConfig, server: ServerConfig, timing: Timing, *, wiring: Wiring | None = None) -> int:
    """Serve until SIGTERM or SIGINT; call from the main thread. Open streams get ``drain_timeout``, a second signal cuts that short.

    The port is taken first, the model is looked for next, and only then is an engine started.

    Args:
        wiring: another core than the one that ``engine`` describes, which is then not looked at.

    Returns:
        0, the exit status of an orderly stop.

    Raises:
        ConfigError: port taken, unknown topology. ModelError. EngineStartError. EngineDeadError: the engine died.
    """
    with _interruptible(), contextlib.closing(listen(server)) as listener, contextlib.ExitStack() as cleanup:
        recording = begin_recording("serve") if server.record else None
        client = make_client(server.topology, _wiring(engine, server, timing, wiring, recording), log_to_terminal=True)
        client.limit = server.limit_concurrency
        _publish(client, cleanup)
        Registry().entries()  # a registry that cannot be used is told before anything slow begins
        _raise_file_limit()
        # A tokenizer that cannot be read is found before the weights are, which takes longer.
        text = TextModel.load(resolve(engine.model, Settings.read().cache_dir, load_format=engine.load_format)) if wiring is None else None
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(_serve(client, text, server, listener, recording))
    return 0


def _wiring(engine: EngineConfig, server: ServerConfig, timing: Timing, given: Wiring | None, recording: Path | None) -> Wiring:
    wiring = given or Wiring.of(engine, codec=server.codec, timing=timing)
    if recording is None:
        return wiring
    attempt("meta.json", lambda: write_meta(recording, engine=asdict(engine), server=asdict(server)), None)
    return wiring.recorded(recording)


async def _serve(client: BaseClient, text: TextModel | None, server: ServerConfig, listener: socket.socket, recording: Path | None) -> None:
    signals = Signals()
    try:
        if not await signals.interrupts(client.start()):
            state = ServerState(Frontend(client, text) if text else Frontend.of(client), server)
            await _serve_ready(client, server, listener, state, signals, recording)
    finally:
        await client.close()


async def _serve_ready(
    client: BaseClient, server: ServerConfig, listener: socket.socket, state: ServerState, signals: Signals, recording: Path | None
) -> None:
    address = url(server, listener)
    host = Host(build_app(state), listener, server)
    await host.start()
    try:
        async with _attachable(client, server, address, recording) as door:
            print(f"mqlab serving {state.model} on {address} (topology {client.shape.name}, engine pid {client.info.pid})", flush=True)
            state.draining = await signals.interrupts(_until_dead(client))
            if state.draining:
                door.refuse()
                await host.refuse()
                await first(_drained(state, door), signals.again.wait(), timeout=server.drain_timeout)
            else:
                await first(signals.stop.wait(), timeout=DEATH_GRACE_S)
                raise EngineDeadError((await client.check()).detail)
    finally:
        # First the client: what still streams then ends with an error event, before its connection is cut.
        await client.close()
        await host.stop(_FLUSH_S)


@contextlib.asynccontextmanager
async def _attachable(client: BaseClient, server: ServerConfig, address: str, recording: Path | None) -> AsyncIterator[Door]:
    """While the block runs, other processes find this one, and attach to its engine."""
    assert client.run_folder is not None, "an engine process has one, an engine in this process was given one"
    door = await Door.open(client, client.run_folder, url=address, recording=recording)
    try:
        with Registry().known(_entry(client.info, client.run_folder, server.topology, address, recording)):
            yield door
    finally:
        await door.close()


async def _drained(state: ServerState, door: Door) -> None:
    await state.drained()
    await door.drained()


def _publish(client: BaseClient, cleanup: contextlib.ExitStack) -> None:
    """Give an engine in this process a run folder, which one in a process of its own has."""
    if isinstance(client, LocalClient):
        run_dir = RunDir()
        cleanup.callback(run_dir.remove)
        run_dir.ipc(SOCKET)  # refuses a path that is too long for a socket
        client.publish(run_dir.path)


def _entry(model: ModelInfo, folder: Path, topology: str, address: str, recording: Path | None) -> Entry:
    pid = os.getpid()
    socket = str(folder / SOCKET)
    return Entry.of(
        pid,
        role="serve",
        model=model.name,
        topology=topology,
        url=address,
        socket=socket,
        owner_pid=pid,
        recording=None if recording is None else str(recording),
    )


async def _until_dead(client: BaseClient) -> None:
    # A hang is for the client to judge, which then declares the engine dead.
    while (await client.check()).state != "dead":
        await asyncio.sleep(_HEALTH_POLL_S)


@contextlib.contextmanager
def _interruptible() -> Iterator[None]:
    """Until the loop handles signals, SIGTERM interrupts as SIGINT does; both are an orderly stop."""
    before = signal.signal(signal.SIGTERM, _interrupt)
    try:
        with contextlib.suppress(KeyboardInterrupt):
            yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _interrupt(signum: int, frame: FrameType | None) -> None:
    del signum, frame
    raise KeyboardInterrupt


def _raise_file_limit() -> None:
    """Each open request holds a file: allow as many as this user may."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):  # macOS caps below what it calls the hard limit
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
