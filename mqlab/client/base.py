"""What every implementation of the client's contract (mqlab.client.contract) shares.

A topology adds how it starts, how it sends and how it closes. Streams, pending calls, request-scoped against fatal errors,
"abort in finally iff unfinished and not dead", unknown ids ignored: all that is here, once.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from abc import abstractmethod
from collections.abc import AsyncGenerator, Callable, Iterable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from mqlab.client.boundary import as_exception, checked, plain_arguments
from mqlab.client.calls import Calls
from mqlab.client.companion import Companion
from mqlab.client.control import Control
from mqlab.client.direct import Sink
from mqlab.client.mailbox import Mailbox
from mqlab.client.pending import pending
from mqlab.client.pushed import Pushed
from mqlab.client.streams import Streams
from mqlab.config import Timing
from mqlab.engine.available import check_loaded
from mqlab.errors import CallTimeout, ClientClosedError, EngineDeadError, MqlabError, Overloaded
from mqlab.types import Abort, Call, Command, Dead, Delta, EngineStats, Event, Health, Model, ModelInfo, Reply, Request, Shape, Step
from mqlab.wire.liveness import judge
from mqlab.wire.ranks import with_ranks
from mqlab.wire.statspage import StatsPage


class BaseClient(Control):
    """What every topology's client shares. All methods on one event loop.

    Attributes:
        own_process: the engine is a process of its own.
        listeners: each is called when the engine's model changed, with what clients are told then; ``info`` is the new one by then.
        streams: the live streams; a probe may put its own kind in their place before the start.
        companions: live as long as the client.
        limit: streams that may be open at once; None for no limit. A stream that was left counts until its core has ended it.
        max_pending: requests that may wait for the engine; None for no limit.
    """

    shape: Shape
    own_process = False

    def __init__(self, timing: Timing) -> None:
        self.timing = timing
        self._info: ModelInfo | None = None
        self._page: StatsPage | None = None
        self.streams = Streams()
        self.listeners: list[Callable[[Model], None]] = []
        self.companions: list[Companion] = []
        self.limit: int | None = None
        self.max_pending: int | None = None
        self._calls = Calls()
        self._dead: Dead | None = None
        self._starting: asyncio.Task[ModelInfo] | None = None
        self._closing: asyncio.Task[None] | None = None
        self._stopped = False
        self._over: asyncio.Future[None] | None = None

    # --- what a topology adds

    @abstractmethod
    async def _start(self) -> ModelInfo:
        """Bring the engine up; ``self._page`` must be set."""

    @abstractmethod
    async def _send(self, command: Command) -> None:
        """Hand a command over; may wait for room."""

    @abstractmethod
    def _post(self, command: Command) -> None:
        """Hand a command over without waiting; for aborts, which must work while a stream is being torn down."""

    @abstractmethod
    async def _stop(self) -> None:
        """Give back processes, threads, sockets and files; also after a failed or interrupted start."""

    # --- the contract

    @property
    def info(self) -> ModelInfo:
        """See EngineClient.info."""
        if self._info is None:
            raise ClientClosedError("the client was not started: use 'async with' or await start()")
        return self._info

    async def start(self) -> None:
        """See EngineClient.start."""
        if self._closing is not None:
            raise ClientClosedError("the client is closed; make a new one")
        if self._starting is not None:
            raise MqlabError("the client was started already; start() is called once, 'async with' does it")
        loop = asyncio.get_running_loop()
        self._over = loop.create_future()
        for companion in self.companions:
            companion.start()
        self._starting = loop.create_task(self._start())
        try:
            info = await self._starting
            self._info = self._info or info  # what an event brought meanwhile is newer
        except BaseException as error:
            closed_meanwhile = self._closing is not None
            await self.close()
            if closed_meanwhile and isinstance(error, asyncio.CancelledError):
                raise ClientClosedError("the client was closed while its engine started") from None
            raise

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.close()

    async def generate(self, request: Request) -> AsyncGenerator[Delta, None]:
        """See EngineClient.generate."""
        request = self.admit(request)
        slot = await self.streams.open(request)
        delta = None
        try:
            await self.hand_over(request, slot)
            while True:
                while (delta := slot.take_nowait()) is None:
                    await slot.arrival()
                if delta.error is not None:
                    raise as_exception(delta.error)
                yield delta
                if delta.finish is not None:
                    return
        finally:
            self.leave(request, delta)

    def push(self, request: Request, sink: Sink) -> Pushed:
        """See EngineClient.push."""
        return Pushed(self, request, sink)

    async def abort(self, ids: Iterable[str]) -> None:
        """See EngineClient.abort."""
        # Only text can be the id of a live request, and what is not known is ignored.
        known = tuple(id for id in ids if isinstance(id, str))
        if self._alive and known:
            self._post(Abort(known))

    async def call(self, method: str, *args: Any, timeout: float | None = None) -> Any:
        """See EngineClient.call."""
        self._ensure_usable()
        plain = plain_arguments(str(method), args)
        with self._calls.one() as (number, future):
            try:
                async with asyncio.timeout(timeout):
                    await self._send(Call(number, str(method), plain))
                    return await future
            except TimeoutError as error:
                raise CallTimeout(f"{method} did not answer within {timeout} s; it may still run") from error

    def glance(self) -> EngineStats:
        """The counters and gauges that the engine published last, without ``finished``; asks nobody, works from any thread.

        Raises:
            ClientClosedError: not started, or closed.
        """
        page = self._page
        try:
            if page is not None:
                return page.read()
        except ValueError:  # closed by the loop's thread between the two lines
            pass
        raise ClientClosedError("the client is not running: there is no page of statistics")

    @property
    def open(self) -> int:
        """Streams that count against ``limit``, with those of the clients that share engine and limit with this one."""
        return len(self.streams)

    @property
    def pending(self) -> int:
        """Requests that wait for the engine."""
        return pending(self.open, self.glance(), self.info.max_num_seqs)

    def log_tail(self) -> str:
        """The last lines that the engine wrote to a log of its own; empty where it shares this process."""
        return ""

    async def do_log_stats(self) -> None:
        """Nothing: the engine logs by itself. Servers written for vLLM call this every few seconds."""

    def publish(self, folder: Path) -> None:
        """Keep the engine's page within this folder, for other processes to look at; before the start. No matter where it has a place."""

    @property
    def processes(self) -> dict[str, int]:
        """Process ids by role, of the processes that this layout has started; empty where all runs in this one."""
        return {}

    @property
    def pids(self) -> dict[str, int]:
        """Process ids by role, of everything that serves a request: ``front``, ``engine``, helpers, and ``rank-1``, ``rank-2``, … where
        several processes share the model; one process may have several roles."""
        return with_ranks({"front": os.getpid(), "engine": self.info.pid, **self.processes})

    @property
    def run_folder(self) -> Path | None:
        """The private folder with the engine's page; None where there is none, or no more."""
        return None

    async def ended(self) -> Dead:
        """Return when the started client can serve nothing any more, and why."""
        assert self._over is not None, "started clients only"
        await asyncio.shield(self._over)
        return self._dead or Dead("the front process is shutting down")

    async def check(self) -> Health:
        """See EngineClient.check."""
        if self._closing is not None:
            raise ClientClosedError("the client is closed")
        if self._dead is not None or self._page is None:
            return Health(state="dead", detail=self._dead.cause if self._dead else "not started")
        return self._health()

    def _health(self) -> Health:
        """What the engine's page says; a layout may know less."""
        assert self._page is not None
        return judge(self._page, self.timing)

    def watch_once(self) -> None:
        """Declare the engine dead when its loop no longer turns. Called every ``health_interval``."""
        health = self._health()
        if self._alive and not health.ok:
            self._die(health.detail)
            self._end_hung()

    def _end_hung(self) -> None:
        """End an engine that was declared dead while it runs; a layout whose engine is a child kills it."""

    async def close(self, *, drain: float = 0.0) -> None:
        """See EngineClient.close."""
        if self._closing is None:
            self._closing = asyncio.get_running_loop().create_task(self._close(drain))
        await asyncio.shield(self._closing)

    # --- what each stream keeps to, however it is read

    def admit(self, request: Request) -> Request:
        """A copy of a request that may be opened.

        Raises:
            InvalidRequest: malformed. ModelUnavailable, EngineDeadError, ClientClosedError.
        """
        self._ensure_usable()
        # Asked here too: a load, during which no engine can answer, may take minutes.
        check_loaded(self.info)
        return checked(request)

    async def hand_over(self, request: Request, slot: Mailbox) -> None:
        """Give the engine a request whose mailbox was opened.

        Raises:
            Overloaded, EngineDeadError, ClientClosedError: it has not got it.
        """
        try:
            self._ensure_usable()  # once more: the id may have been waited for
            self._ensure_room()
            await self._send(request)
        except Exception:
            slot.finished = True  # the core has not got it: there is nothing to abort, and no last delta to wait for
            raise

    def leave(self, request: Request, last: Delta | None) -> None:
        """Whoever takes its deltas goes, having been given ``last`` at last; a request that still runs is aborted."""
        if self.streams.leave(request.id, last, alive=self._alive):
            self._post(Abort((request.id,), request.client))

    # --- events

    def _deliver(self, event: Event) -> None:
        _ON_EVENT[type(event)](self, event)

    def _on_step(self, step: Step) -> None:
        self.streams.put(step.deltas)

    def _on_reply(self, reply: Reply) -> None:
        self._calls.settle(reply)

    def _on_model(self, model: Model) -> None:
        self._take_info(model.info)
        for listener in tuple(self.listeners):
            listener(model)

    def _take_info(self, info: ModelInfo) -> None:
        """The engine has another model, or none, from now on."""
        self._info = info

    def _on_dead(self, dead: Dead) -> None:
        self._die(dead.cause, dead.traceback)

    def _die(self, cause: str, traceback: str = "") -> None:
        """The engine is gone: the first cause ends every stream and call, now and later."""
        if self._dead is None:
            self._dead = Dead(cause, traceback)
            self._end(self._death)

    def _death(self) -> EngineDeadError:
        assert self._dead is not None
        return EngineDeadError(self._dead.cause, self._dead.traceback)

    # --- inner workings

    @property
    def _alive(self) -> bool:
        """Whether there is a core to talk to; it is while open streams drain."""
        return self._info is not None and self._dead is None and not self._stopped

    def _ensure_usable(self) -> None:
        if self._closing is not None:
            raise ClientClosedError("the client is closed")
        if self._dead is not None:
            raise self._death()
        if self._info is None:
            raise ClientClosedError("the client was not started: use 'async with' or await start()")

    def _ensure_room(self) -> None:
        if self.limit is not None and self.open > self.limit:
            open_now = f"{self.limit} requests are open at once, the most that may be (limit; each choice counts)"
            raise Overloaded(f"{open_now}; send it again when some have ended, or with fewer choices where it has more than that itself")
        if self.max_pending is not None and self.pending > self.max_pending:
            raise Overloaded(f"{self.max_pending} requests wait for the engine, the most that may (max_pending); send it again later")

    async def _sent(self, sending: asyncio.Future[Any]) -> None:
        """Wait until a socket has taken a message, or until death or a close ends the wait.

        Whoever waits may be cancelled; the message is still sent, so that an abort behind it has a request to meet.

        Raises:
            EngineDeadError, ClientClosedError
        """
        if sending.done():
            return sending.result()
        assert self._over is not None
        await asyncio.wait({sending, self._over}, return_when=asyncio.FIRST_COMPLETED)
        if self._over.done():
            raise self._death() if self._dead is not None else _closed_meanwhile()
        return sending.result()

    def _end(self, make_error: Callable[[], MqlabError]) -> None:
        """Streams and calls end with an error; so does what waits to be sent."""
        if self._over is not None and not self._over.done():
            self._over.set_result(None)
        self.streams.fail(make_error)
        self._calls.fail(make_error)

    async def _close(self, drain: float) -> None:
        if self._starting is not None and not self._starting.done():
            self._starting.cancel()
            await asyncio.wait({self._starting})
        if drain > 0 and self._alive:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(drain):
                    await self._drained()
        self._stopped = True
        self._end(_closed_meanwhile)
        try:
            await self._stop()
        finally:
            for companion in self.companions:
                companion.stop()

    async def _drained(self) -> None:
        while self._alive and not self.streams.idle:
            await asyncio.sleep(0.01)


# Unbound, outside of the instances: bound methods in an instance would be a cycle, and a dropped client would wait for the collector.
_ON_EVENT: dict[type, Callable[[BaseClient, Any], None]] = {
    Step: BaseClient._on_step,
    Reply: BaseClient._on_reply,
    Dead: BaseClient._on_dead,
    Model: BaseClient._on_model,
}


def _closed_meanwhile() -> ClientClosedError:
    return ClientClosedError("the client was closed while the request ran")
