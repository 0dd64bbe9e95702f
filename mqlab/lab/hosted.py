"""What a session runs: a client and its front on an event loop of their own, and the sampler beside them."""

from __future__ import annotations

import threading

from mqlab.client.base import BaseClient
from mqlab.client.sync import LoopThread
from mqlab.errors import CallTimeout
from mqlab.front.frontend import Frontend
from mqlab.lab.sampler import Sampler
from mqlab.topologies import make_client
from mqlab.types import Health, ModelInfo
from mqlab.wire.wiring import Wiring

CLOSE_S = 5.0
"""How long a close may take beyond the grace that the engine gets."""


class Hosted:
    """A started engine, apart from the session that owns it, so that it can be given back when the session is simply dropped.

    Args:
        topology: layout between client and engine.
        wiring: what it is wired with.
        preset: of the topology.

    Raises:
        ConfigError, ModelError, EngineStartError: nothing is left running then.
    """

    def __init__(self, topology: str, wiring: Wiring, preset: str) -> None:
        self.client: BaseClient = make_client(topology, wiring, preset=preset)
        self.thread = LoopThread("mqlab-session")
        try:
            self.front = self.thread.run(_open(self.client))
        except BaseException:
            self.thread.close()
            raise
        self.info: ModelInfo = self.client.info
        self.sampler = Sampler(self.client.glance)
        self._last_log = ""
        self._release_lock = threading.Lock()

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
            self.sampler.stop()
            self._last_log = self.log()
            if self._close_client():
                self.thread.close()
            else:
                # Its loop is stuck in a step that runs in this process; it ends with that step, and nobody waits for it.
                threading.Thread(target=self.thread.close, name="mqlab-release", daemon=True).start()

    def _close_client(self) -> bool:
        closed = self.thread.submit(self.client.close())
        try:
            closed.future.result(self.client.timing.stop_grace + CLOSE_S)
        except TimeoutError:
            return False
        return True


async def _open(client: BaseClient) -> Frontend:
    await client.start()
    try:
        return Frontend.of(client)
    except BaseException:
        await client.close()
        raise
