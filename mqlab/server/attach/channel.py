"""The front's end of a client's channel: commands in, events out, over one request and its response."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

import msgspec
from starlette.types import Receive, Send

from mqlab.client.base import BaseClient
from mqlab.client.boundary import as_failure
from mqlab.client.slot import merge
from mqlab.errors import CallError, ClientClosedError, EngineDeadError, RequestError
from mqlab.types import Abort, Call, Command, Dead, Delta, Event, Failure, Reply, Request, Step
from mqlab.wire.codecs import MsgpackCodec
from mqlab.wire.native import Unframer, frame

_LOG = logging.getLogger(__name__)
_HEADERS = [(b"content-type", b"application/vnd.msgpack")]
_LAST_S = 1.0
_SHUTTING_DOWN = Failure("failed", "the server is shutting down")


class Outbox:
    """What a client has not been sent yet. Tokens of one request are merged, so a client that reads slowly costs no queue."""

    def __init__(self) -> None:
        self._deltas: dict[str, Delta] = {}
        self._events: list[Event] = []
        self._filled = asyncio.Event()

    def put(self, delta: Delta) -> None:
        """Add what a request gained."""
        before = self._deltas.get(delta.id)
        self._deltas[delta.id] = delta if before is None else merge(before, delta)
        self._filled.set()

    def add(self, event: Event) -> None:
        """Add a reply, another model, or the last word."""
        self._events.append(event)
        self._filled.set()

    @property
    def empty(self) -> bool:
        """Whether there is nothing to send."""
        return not self._deltas and not self._events

    async def take(self) -> list[Event]:
        """All of it, tokens first; waits for something."""
        await self._filled.wait()
        self._filled.clear()
        step: list[Event] = [Step(list(self._deltas.values()))] if self._deltas else []
        events = step + self._events
        self._deltas, self._events = {}, []
        return events


class ServerChannel:
    """One client's commands, carried out.

    Args:
        client: the engine.
        prefix: of this client's request ids in the engine, so that several clients may use the same ones.
        draining: whether requests are refused, for this process is about to end.
    """

    def __init__(self, client: BaseClient, prefix: str, draining: Callable[[], bool]) -> None:
        self._client = client
        self._prefix = prefix
        self._draining = draining
        self._sending = False
        self._codec = MsgpackCodec()
        self._outbox = Outbox()
        self._works: set[asyncio.Task[None]] = set()

    @property
    def busy(self) -> bool:
        """Whether something runs for the client, or is on its way to it."""
        return bool(self._works) or self._sending or not self._outbox.empty

    async def serve(self, receive: Receive, send: Send) -> None:
        """Return when the client has left or the engine has ended; what the client still had running is aborted."""
        await send({"type": "http.response.start", "status": 200, "headers": _HEADERS})
        loop = asyncio.get_running_loop()
        intake, output = loop.create_task(self._take_in(receive)), loop.create_task(self._send_out(send))
        mourning = loop.create_task(self._mourn())
        self._client.listeners.append(self._outbox.add)
        try:
            await asyncio.wait({intake, output}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._client.listeners.remove(self._outbox.add)
            tasks = {intake, output, mourning, *self._works}
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        if not intake.cancelled():
            intake.result()  # what could not be understood breaks the response off
        await send({"type": "http.response.body"})

    async def _take_in(self, receive: Receive) -> None:
        unframer = Unframer()
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                return
            for data in unframer.feed(message.get("body", b"")):
                await self._carry_out(self._codec.command(data))
            if not message.get("more_body", False):
                return

    async def _carry_out(self, command: Command) -> None:
        match command:
            case Request() if self._draining():
                self._outbox.put(Delta(command.id, [], finish="error", error=_SHUTTING_DOWN))
            case Request():
                self._begin(self._generate(command))
                # The request must be on its way before an abort of it is: its task's first turn sends it.
                await asyncio.sleep(0)
            case Abort():
                await self._client.abort([self._prefix + id for id in command.ids or ()])
            case Call():
                self._begin(self._call(command))

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._works.add(task)
        task.add_done_callback(self._works.discard)

    async def _generate(self, request: Request) -> None:
        id = request.id
        try:
            async for delta in self._client.generate(msgspec.structs.replace(request, id=self._prefix + id)):
                delta.id = id
                self._outbox.put(delta)
        except (EngineDeadError, ClientClosedError):
            pass  # told by _mourn, to all
        except Exception as error:
            if not isinstance(error, RequestError):
                _LOG.error("a request failed", exc_info=error)
            self._outbox.put(Delta(id, [], finish="error", error=as_failure(error)))

    async def _call(self, call: Call) -> None:
        try:
            self._outbox.add(Reply(call.id, await self._client.call(call.method, *call.args)))
        except (EngineDeadError, ClientClosedError):
            pass  # told by _mourn, to all
        except CallError as error:
            self._outbox.add(Reply(call.id, error=str(error)))

    async def _mourn(self) -> None:
        """Tell the client of the engine's end, after all that came before it."""
        last = await self._client.ended()
        if self._works:
            await asyncio.wait(self._works, timeout=_LAST_S)
        self._outbox.add(last)

    async def _send_out(self, send: Send) -> None:
        while True:
            events = await self._outbox.take()
            self._sending = True
            body = b"".join([frame(self._codec.encode(event)) for event in events])
            await send({"type": "http.response.body", "body": body, "more_body": True})
            self._sending = False
            if type(events[-1]) is Dead:
                return
