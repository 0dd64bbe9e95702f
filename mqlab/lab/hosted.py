"""What a session runs: a client and its front on an event loop of their own, and the sampler beside them."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import msgspec

from mqlab.client.base import BaseClient
from mqlab.client.http import FrontClient, FrontSide, HttpClient
from mqlab.client.sync import LoopThread
from mqlab.config import Timing
from mqlab.errors import CallTimeout, ConfigError
from mqlab.front.frontend import Frontend
from mqlab.lab.doors import Doors
from mqlab.lab.sampler import Sampler
from mqlab.topologies import find_layout, layout_options, make_client
from mqlab.types import Health, Model, ModelInfo
from mqlab.wire.native import SOCKET
from mqlab.wire.registry import Entry, Registry
from mqlab.wire.wiring import Wiring

CLOSE_S = 5.0
"""How long a close may take beyond the grace that the engine gets."""


class Hosted:
    """A started engine, apart from the session that owns it, so that it can be given back when the session is simply dropped.

    Layouts whose engine is another process have their client on a loop thread of this one. The others share one process with their
    engine; that is a front process of their own, reached by its private socket, so that a step never holds up whoever looks. The
    registry knows either, and other kernels can attach to it.

    Attributes:
        client: the started client.
        front: prompts in, text out.
        recording: folder that its processes record into, if any.
        attached: somebody else runs the engine; ``release`` only detaches.
        entry: as the registry has it.

    Args:
        topology: layout between client and engine.
        wiring: what it is wired with.
        preset: of the topology.
        record: folder that all of its processes are to record into.

    Raises:
        ConfigError, ModelError, EngineStartError: nothing is left running then.
    """

    def __init__(self, topology: str, wiring: Wiring, preset: str = "best", *, record: Path | None = None) -> None:
        self._take(_make(topology, wiring, preset, record), record)
        self.entry = self._entry(topology)
        self.attached = False
        self.client.listeners.append(self._rename)
        try:
            self._registry.add(self.entry)
        except BaseException:
            self._release()
            raise

    @classmethod
    def attach(cls, entry: Entry, timing: Timing | None = None) -> Hosted:
        """An engine that somebody else runs.

        Raises:
            ConfigError: it has no private socket. EngineStartError: nobody answers there. ModelError: it has no tokenizer.
        """
        if entry.socket is None:
            raise ConfigError(f"engine {entry.model!r} (pid {entry.pid}) has no private socket to attach to; use its URL, {entry.url}")
        hosted = cls.__new__(cls)
        hosted.entry = entry
        hosted.attached = True
        hosted._take(HttpClient(entry.socket, timing), Path(entry.recording) if entry.recording else None)
        return hosted

    def _take(self, client: BaseClient, recording: Path | None) -> None:
        self.client = client
        self.recording = recording
        self._doors = Doors()
        self._registry = Registry()
        self.thread = LoopThread("mqlab-session")
        try:
            self.front = self.thread.run(_open(client, self._doors, recording))
        except BaseException:
            self.thread.close()
            raise
        self._last_log = ""
        self._release_lock = threading.Lock()
        try:
            self.sampler = Sampler(client.glance) if recording is None else Sampler.of(client.glance, recording, self.pids())
        except BaseException:
            self._end()
            raise

    def _entry(self, topology: str) -> Entry:
        socket = self._doors.socket
        if isinstance(self.client, FrontClient):
            assert self.client.run_folder is not None
            socket = self.client.run_folder / SOCKET
        pids = self.pids()
        return Entry.of(
            pids["engine"] if pids["front"] == os.getpid() else pids["front"],
            role="session",
            model=self.info.name,
            topology=topology,
            url=self.url,
            socket=str(socket),
            owner_pid=os.getpid(),
            recording=None if self.recording is None else str(self.recording),
        )

    def _rename(self, model: Model) -> None:
        """Others find it under the name of the model that it has."""
        if model.info.name != self.entry.model:
            self.entry = msgspec.structs.replace(self.entry, model=model.info.name)
            self._registry.add(self.entry)

    # --- looking

    @property
    def info(self) -> ModelInfo:
        """What the engine said of itself last."""
        return self.client.info

    def pids(self) -> dict[str, int]:
        """Its processes by role: ``front`` and ``engine``, one and the same under inproc and aio, and what else its layout has."""
        return self.client.pids

    @property
    def url(self) -> str | None:
        """Of its OpenAI server; None where there is none yet."""
        known = self.client.front.url if isinstance(self.client, FrontSide) and self.client.front is not None else None
        return known or self._doors.url

    def open_http(self) -> str:
        """The URL of its OpenAI server, which is started on a free port of 127.0.0.1 where there is none yet.

        Raises:
            ClientClosedError: after ``release``.
        """
        if self.url is not None and not self.thread.closed:
            return self.url
        url = self.thread.run(self._doors.open_http(self.front))
        if not self.attached:
            self.entry = msgspec.structs.replace(self.entry, url=url)
            self._registry.add(self.entry)
        return url

    def check(self, timeout: float) -> Health:
        """The client's view of the engine.

        Raises:
            CallTimeout: the loop did not turn for ``timeout`` seconds. ClientClosedError: after ``release``.
        """
        job = self.thread.submit(self.client.check())
        try:
            return job.future.result(timeout)
        except TimeoutError:
            job.cancel()
            raise CallTimeout(f"the session's event loop did not answer within {timeout:g} s") from None

    def log(self) -> str:
        """The end of the engine's log; after ``release``, as it was then."""
        return self.client.log_tail() or self._last_log

    # --- ending

    def release(self) -> None:
        """End the engine and the thread, in bounded time; idempotent. Safe where the collector may call it: on any thread."""
        if self.thread.is_current:
            threading.Thread(target=self._release, name="mqlab-release", daemon=True).start()
        else:
            self._release()

    def _release(self) -> None:
        with self._release_lock:
            if self.thread.closed:
                return
            if not self.attached:
                self._registry.remove(self.entry)
            self.sampler.stop()
            self._last_log = self.log()
            self._end()

    def _end(self) -> None:
        if self._close_client():
            self.thread.close()
        else:
            # Its loop is stuck; whatever holds it ends one day, and nobody waits for that.
            threading.Thread(target=self.thread.close, name="mqlab-release", daemon=True).start()

    def _close_client(self) -> bool:
        closed = self.thread.submit(_close(self.client, self._doors))
        try:
            closed.future.result(self.client.timing.stop_grace + CLOSE_S)
        except TimeoutError:
            return False
        return True


def _make(topology: str, wiring: Wiring, preset: str, record: Path | None) -> BaseClient:
    layout_options(topology, preset)  # a wrong name is told here, not by a child that cannot start
    if not find_layout(topology).own_process:
        return FrontClient(topology, wiring, preset=preset, recording=record)
    return make_client(topology, wiring if record is None else wiring.recorded(record), preset=preset)


async def _open(client: BaseClient, doors: Doors, recording: Path | None) -> Frontend:
    await client.start()
    try:
        front = Frontend.of(client)
        if not isinstance(client, FrontSide):
            await doors.open_private(client, recording)
        return front
    except BaseException:
        await client.close()
        raise


async def _close(client: BaseClient, doors: Doors) -> None:
    # First the client: whoever is attached learns that from it, before the connection is cut.
    await client.close()
    await doors.close()
