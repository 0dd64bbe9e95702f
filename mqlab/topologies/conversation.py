"""The front's side of ``rpc`` and ``rpc_proxy``: every request, abort and call is a conversation of its own, on a socket of its own.

The client opens a DEALER, sends one command, reads to the last answer, closes. For the engine's side see mqlab.topologies.rpc_server.

Departures from the system that both reproduce. Commands carry their number, for on sockets of their own they overtake one another: an abort
could be there before its request. An abort that gets no socket goes over its request's. Whether the engine lives is read from its page,
not asked. Who has a call open is told on its socket when the model changes; news are numbered, and the newest holds.
"""

from __future__ import annotations

import asyncio
import errno
import itertools
import os
import resource
import weakref
from abc import abstractmethod
from typing import Any

import zmq

from mqlab.client.remote import SocketClient
from mqlab.errors import CallError, Overloaded
from mqlab.topologies.rpc_server import HELLO, NUMBER
from mqlab.types import Abort, Call, Command, Dead, Model, ModelInfo, Reply, Request, Step
from mqlab.wire.rundir import RunDir
from mqlab.wire.sockets import SocketSet
from mqlab.wire.wiring import Wiring


class ConversingClient(SocketClient):
    """The front's side.

    Args:
        max_sockets: of the context; None is as many as the library can.
    """

    def __init__(self, wiring: Wiring, max_sockets: int | None, *, log_to_terminal: bool = False) -> None:
        super().__init__(wiring, log_to_terminal=log_to_terminal)
        self._max_sockets = max_sockets
        self._numbers = itertools.count()
        self._news = 0
        self._streaming: dict[str, Talk] = {}

    @abstractmethod
    def _dial(self, sockets: SocketSet[Any]) -> Any:
        """Open a DEALER that the engine hears."""

    def _open_before(self, sockets: SocketSet[Any], run_dir: RunDir) -> None:
        self._max_sockets = sockets.limit(self._max_sockets)
        self._sockets = sockets

    async def _handshake(self, sockets: SocketSet[Any], run_dir: RunDir) -> ModelInfo:
        socket = self._dial(sockets)
        await socket.send_multipart([NUMBER.pack(0), HELLO])
        info = self._codec.info(await socket.recv())
        sockets.close_socket(socket)
        return info

    def _receivers(self) -> list[Any]:
        return []

    async def _send(self, command: Command) -> None:
        try:
            await super()._send(command)
        except Overloaded as error:
            raise (CallError(str(error)) if type(command) is Call else error) from error.__cause__

    def _post(self, command: Command) -> None:
        try:
            super()._post(command)
        except Overloaded:
            # Only what is to be aborted may have a socket to spare: its own.
            ids = (command.ids or ()) if type(command) is Abort else ()
            if talk := next((self._streaming[id] for id in ids if id in self._streaming), None):
                talk.send(self._frames(command))

    def _write(self, command: Command) -> asyncio.Future[Any]:
        """Begin a conversation; it goes on by itself.

        Raises:
            Overloaded: no socket could be opened; nothing was sent.
        """
        try:
            socket = self._dial(self._sockets)
        except zmq.ZMQError as error:
            if error.errno != errno.EMFILE:
                raise
            raise Overloaded(self._no_socket()) from error
        talk = Talk(self, self._sockets, socket, type(command))
        if type(command) is Request:
            self._streaming[command.id] = talk
        talk.listen()
        return talk.send(self._frames(command))

    def _frames(self, command: Command) -> list[bytes]:
        return [NUMBER.pack(next(self._numbers)), self._codec.encode(command)]

    def _no_socket(self) -> str:
        files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        held = f"Too many open files: each request, abort and call has a socket of its own, {len(self._sockets)} are open"
        less = "or take a layout whose sockets do not grow with requests (mq, v1)"
        if _a_file_is_left():
            return f"{held}, and max_sockets={self._max_sockets} is the limit; raise it, send fewer at once, {less}"
        return f"{held}, and this process may open {files} files; raise ulimit -n, send fewer at once, {less}"

    def hear(self, frames: list[bytes], kind: type[Command]) -> bool:
        """One answer to a command of that kind; whether it is the last."""
        try:
            event = self._codec.event(frames[0])
            if type(event) is not Model or self._is_news(frames[1]):
                self._deliver(event)
        except Exception as error:
            self.lose(error)
            return True
        if type(event) is Reply:  # to a request it is the reply to its abort, which found no socket of its own
            return kind is not Request
        return self._ends(event) if type(event) is Step else type(event) is Dead

    def _ends(self, step: Step) -> bool:
        (delta,) = step.deltas
        if delta.finish is not None:
            self._streaming.pop(delta.id, None)
        return delta.finish is not None

    def _is_news(self, number: bytes) -> bool:
        before, self._news = self._news, max(self._news, NUMBER.unpack(number)[0])
        return self._news > before


class Talk:
    """One conversation: what comes on a socket is the client's, and the socket is closed behind the last of it.

    No task, which would have to be ended: a conversation may begin while the loop ends its tasks, with the abort of a stream.
    """

    def __init__(self, client: ConversingClient, sockets: SocketSet[Any], socket: Any, kind: type[Command]) -> None:
        self._client = weakref.ref(client)
        self._sockets = sockets
        self._socket = socket
        self._kind = kind

    def send(self, frames: list[bytes]) -> asyncio.Future[Any]:
        """Hand frames to the socket; done when it has taken them."""
        return self._socket.send_multipart(frames)

    def listen(self) -> None:
        """Wait for the next answer. One that is here already is taken with the loop's next turn, so that readers have theirs."""
        self._socket.recv_multipart().add_done_callback(self._heard)

    def _heard(self, answer: asyncio.Future[list[bytes]]) -> None:
        if answer.cancelled() or self._socket.closed:  # by the close of all, before the answer or right behind it
            return
        client = self._client()
        if client is None or client.hear(answer.result(), self._kind):
            self._sockets.close_socket(self._socket)
        else:
            self.listen()


def _a_file_is_left() -> bool:
    try:
        os.close(os.dup(0))
    except OSError as error:  # there may be no standard input
        return error.errno not in (errno.EMFILE, errno.ENFILE)
    return True
