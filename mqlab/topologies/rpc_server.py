"""The engine's side of ``rpc`` and ``rpc_proxy``: an event loop with an asynchronous engine, and a task for every command.

A request is answered with a message for each step, which goes to the socket that the request came from; so do replies to calls, and the
acknowledgement of an abort.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import signal
import struct
from collections.abc import Callable, Coroutine
from contextlib import aclosing
from pathlib import Path
from typing import Any

import uvloop

from mqlab.client.boundary import as_failure
from mqlab.errors import CallError, EngineDeadError, EngineStartError, RequestError
from mqlab.topologies.aio import AioClient
from mqlab.types import Abort, Call, Command, Dead, Delta, Event, Model, Reply, Request, Step
from mqlab.wire.files import allow_many_files
from mqlab.wire.report import Reporter
from mqlab.wire.sockets import async_sockets
from mqlab.wire.wiring import Wiring

HELLO = b"ready?"
"""What asks for the engine's info; in place of a command."""

NUMBER = struct.Struct("<Q")
"""The frame before a command: its place among its client's. The frame behind news: which of them is newer."""

BURST = 64
"""Messages that may be worked off before the rest of the loop has a turn."""

_ACK = -1
"""Id of the reply to an abort, which no call has."""

_LATE_S = 0.2
"""How long the engine waits for a command that others have overtaken. One whose connection found no file may be late for ever."""

_LINGER_MS = 1000


class Engine(AioClient):
    """The engine behind the socket, on the same loop.

    Attributes:
        failure: what it died of, where that was an error of its own.
    """

    failure: Exception | None = None

    def abort_now(self, abort: Abort) -> None:
        """Without waiting."""
        self._post(abort)

    def _fatal(self, error: Exception) -> None:
        self.failure = self.failure or error
        super()._fatal(error)


class InTurn:
    """Puts numbered things back into the order in which they were sent."""

    def __init__(self, start: Callable[[Any], None]) -> None:
        self._start = start
        self._next = 0
        self._early: dict[int, Any] = {}
        self._timer: asyncio.TimerHandle | None = None

    def take(self, number: int, thing: Any) -> None:
        """Start it, and what waited for it; or keep it until its turn, or until that is long overdue."""
        if number < self._next:
            self._start(thing)
            return
        self._early[number] = thing
        self._start_due()

    def _start_due(self) -> None:
        while self._next in self._early:
            self._start(self._early.pop(self._next))
            self._next += 1
        if self._early and self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_LATE_S, self._skip)
        elif not self._early and self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _skip(self) -> None:
        self._timer = None
        self._next = min(self._early)
        self._start_due()


class Server:
    """Reads commands, starts a task for each, sends answers to the socket that they came from."""

    def __init__(self, engine: Engine, wiring: Wiring, socket: Any) -> None:
        self._engine = engine
        self._codec = wiring.build_codec()
        self._socket = socket
        self._order = InTurn(self._start)
        self._tasks: set[asyncio.Task[None]] = set()
        self.failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._callers: list[bytes] = []
        self._news = 0
        engine.listeners.append(self._tell)

    async def run(self) -> None:
        """Serve until the engine ends."""
        for turn in itertools.count(1):
            peer, number, frame = await self._socket.recv_multipart()
            if frame == HELLO:
                await self._socket.send_multipart([peer, self._codec.encode(self._engine.info)])
            else:
                self._order.take(NUMBER.unpack(number)[0], (peer, self._codec.command(frame)))
            if turn % BURST == 0:  # what is here already does not suspend the await above
                await asyncio.sleep(0)

    async def answered(self) -> None:
        """Return when everybody was told that the engine has ended."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=_LINGER_MS / 1000)

    def _start(self, asked: tuple[bytes, Command]) -> None:
        peer, command = asked
        task = asyncio.get_running_loop().create_task(self._handle(peer, command))
        self._tasks.add(task)
        task.add_done_callback(self._handled)

    def _handled(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None and not self.failed.done():
            self.failed.set_exception(error)

    async def _handle(self, peer: bytes, command: Command) -> None:
        match command:
            case Request():
                work = self._generate(peer, command)
            case Call():
                work = self._call(peer, command)
            case Abort():
                work = self._abort(command)
        try:
            last = await work
        except EngineDeadError as error:
            last = Dead(error.cause, error.traceback)
        await self._send(peer, last)

    async def _generate(self, peer: bytes, request: Request) -> Event:
        last = Delta(request.id, [], finish="error")
        try:
            # Closed before its last delta leaves: that makes the id free for the client, and it must be free here by then.
            async with aclosing(self._engine.generate(request)) as deltas:
                async for delta in deltas:
                    if delta.finish is not None:
                        last = delta
                        break
                    await self._send(peer, Step([delta], request.client))
        except RequestError as error:
            last.error = as_failure(error)
        return Step([last], request.client)

    async def _call(self, peer: bytes, call: Call) -> Event:
        self._callers.append(peer)
        try:
            return Reply(call.id, await self._engine.call(call.method, *call.args), client=call.client)
        except CallError as error:
            return Reply(call.id, error=str(error), client=call.client)
        finally:
            self._callers.remove(peer)

    async def _abort(self, abort: Abort) -> Event:
        self._engine.abort_now(abort)
        return Reply(_ACK, client=abort.client)

    def _tell(self, model: Model) -> None:
        self._news += 1
        frames = [self._codec.encode(model), NUMBER.pack(self._news)]
        for peer in self._callers:
            # The future is the socket's to keep. Their replies are sent later, and stay behind it.
            self._socket.send_multipart([peer, *frames])

    async def _send(self, peer: bytes, event: Event) -> None:
        await self._socket.send_multipart([peer, self._codec.encode(event)])


def run_engine(reporter: Reporter, run_dir: Path, *, wiring: Wiring, kind: str, address: str, hwm: int) -> None:
    """The engine process: an event loop with an engine and one socket.

    Args:
        kind: of the socket: a ``router`` binds, a ``dealer`` connects.
    """
    allow_many_files()  # ZeroMQ ends the process in which it cannot accept a connection for want of one
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_run_until_stopped(_serve(reporter, run_dir, wiring, kind, address, hwm)))


async def _run_until_stopped(work: Coroutine[Any, Any, None]) -> None:
    task = asyncio.get_running_loop().create_task(work)
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    with contextlib.suppress(asyncio.CancelledError):
        await task


async def _serve(reporter: Reporter, run_dir: Path, wiring: Wiring, kind: str, address: str, hwm: int) -> None:
    engine = Engine(wiring)
    engine.publish(run_dir)
    try:
        await engine.start()
    except EngineStartError as error:
        reporter.failed(error.cause, error.log_tail)
        raise
    sockets = async_sockets(wiring.engine_loop_socket.build)
    opened = sockets.bind if kind == "router" else sockets.connect
    server = Server(engine, wiring, opened(kind, address, hwm=hwm))
    running = asyncio.get_running_loop().create_task(server.run())
    over = asyncio.get_running_loop().create_task(engine.ended())
    reporter.ready()
    await asyncio.wait({running, over, server.failed}, return_when=asyncio.FIRST_COMPLETED)
    for broken in (running, server.failed):
        if broken.done():
            broken.result()
    await server.answered()
    sockets.close(linger_ms=_LINGER_MS)
    raise engine.failure or EngineDeadError(over.result().cause)
