"""``mqlab serve``: from the settings to a running server, and back to nothing, in bounded time."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import asdict
from functools import partial
from pathlib import Path
from types import FrameType

import uvloop

from mqlab.client.base import BaseClient
from mqlab.client.local import LocalClient
from mqlab.config import EngineConfig, ServerConfig, Settings, Timing
from mqlab.errors import EngineDeadError
from mqlab.front.textmodel import TextModel
from mqlab.models.resolve import resolve
from mqlab.probes.base import attempt
from mqlab.probes.recording import begin_recording
from mqlab.record.metadata import write_meta
from mqlab.server.attach.native import Door
from mqlab.server.http.access import with_keys, without_secrets
from mqlab.server.http.listener import listening, url
from mqlab.server.http.tls import tls_context
from mqlab.server.process.collector import spare_collector
from mqlab.server.process.fronts import Fronts
from mqlab.server.process.httpfront import HttpFront
from mqlab.server.process.serving import Serving, wind_down
from mqlab.server.process.signals import Signals, first
from mqlab.text.chat import read_template
from mqlab.topologies import make_client
from mqlab.topologies.v1_fronts import OwnerClient
from mqlab.types import ModelInfo
from mqlab.wire.files import allow_many_files
from mqlab.wire.native import LAUNCHER, SOCKET
from mqlab.wire.registry import Entry, Registry
from mqlab.wire.rundir import RunDir
from mqlab.wire.wiring import Wiring

DEATH_GRACE_S = 3.0
"""How long a server whose engine died goes on saying so before it ends."""

_HEALTH_POLL_S = 0.25


def serve(engine: EngineConfig, server: ServerConfig, timing: Timing, *, wiring: Wiring | None = None) -> int:
    """Serve until SIGTERM or SIGINT; call from the main thread. Open streams get ``drain_timeout``, a second signal cuts that short.

    The port is taken first, the model is looked for next, and only then is an engine started.

    Args:
        wiring: another core than the one that ``engine`` describes, which is then not looked at.

    Returns:
        0, the exit status of an orderly stop.

    Raises:
        ConfigError: port taken, unknown topology, a certificate that cannot be used, control routes that are open to others.
        ModelError. EngineStartError. EngineDeadError: the engine died. FrontError: so did a front process, again and again.
    """
    server = with_keys(server)
    tls_context(server)  # a certificate that cannot be used is told before anything slow begins
    if server.chat_template is not None:
        read_template(server.chat_template)  # likewise
    with _interruptible(), listening(server) as listener, contextlib.ExitStack() as cleanup:
        plain = wiring or Wiring.of(engine, codec=server.codec, timing=timing)
        recording = begin_recording("serve") if server.record else None
        if recording is not None:
            attempt("meta.json", lambda: write_meta(recording, engine=asdict(engine), server=without_secrets(server)), None)
        wiring_of = partial(_wiring, plain, recording)
        client = _client(server, wiring_of)
        _publish(client, cleanup)
        Registry().entries()  # a registry that cannot be used is told before anything slow begins
        allow_many_files()
        # A tokenizer that cannot be read is found before the weights are, which takes longer.
        text = TextModel.load(resolve(engine.model, Settings.read().cache_dir, load_format=engine.load_format)) if wiring is None else None
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(_serve(client, text, server, listener, wiring_of, recording))
    return 0


def _wiring(plain: Wiring, recording: Path | None, role: str) -> Wiring:
    """What the client in a process of this role is wired with."""
    return plain if recording is None else plain.recorded(recording, role)


def _client(server: ServerConfig, wiring_of: Callable[[str], Wiring]) -> BaseClient:
    """Of the engine, not started yet: the front's own, or that of the launcher of several."""
    if server.api_server_count > 1:
        wiring = wiring_of(LAUNCHER)
        client = wiring.wrap_client(OwnerClient(wiring, log_to_terminal=True))
    else:
        client = make_client(server.topology, wiring_of("front"), log_to_terminal=True)
    client.limit, client.max_pending = server.limit_concurrency, server.max_pending
    return client


async def _serve(
    client: BaseClient,
    text: TextModel | None,
    server: ServerConfig,
    listener: socket.socket,
    wiring_of: Callable[[str], Wiring],
    recording: Path | None,
) -> None:
    signals = Signals()
    try:
        if not await signals.interrupts(client.start()):
            address = url(server, listener)
            several = isinstance(client, OwnerClient)
            serving = Fronts(client, listener, server, wiring_of) if several else HttpFront(client, text, listener, server)
            await _serve_ready(client, serving, server, address, signals, recording)
    finally:
        await client.close()


async def _serve_ready(
    client: BaseClient, serving: Serving, server: ServerConfig, address: str, signals: Signals, recording: Path | None
) -> None:
    try:
        if await signals.interrupts(serving.start()):
            return
        spare_collector()
        async with _attachable(client, server, address, recording) as door:
            print(f"mqlab serving {client.info.name} on {address} (topology {client.shape.name}, engine pid {client.info.pid})", flush=True)
            if await signals.interrupts(first(_until_dead(client), serving.failed())):
                door.refuse()
                await wind_down(serving, door, hurry=signals.again, seconds=server.drain_timeout)
            else:
                await first(signals.stop.wait(), timeout=DEATH_GRACE_S)
                raise EngineDeadError((await client.check()).detail)
    finally:
        await serving.stop()


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
