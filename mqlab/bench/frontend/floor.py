"""The server's own floor: ``python -m mqlab.bench.frontend.floor JSON``, a process that streams chunks that were made before.

The same host, HTTP protocol and event loop as the server, without what makes a token a chunk: no tokenizer, no JSON, no task that wakes up
for each stream, no message of an engine. A step from a process of its own (see steps) writes one chunk to each connection.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from typing import Any

import msgspec
import uvloop
from starlette.types import Receive, Scope, Send

from mqlab.bench.frontend.leaving import end_with_parent
from mqlab.bench.frontend.setups import FLOOR_READY, FloorSetup
from mqlab.config import ServerConfig
from mqlab.server.http.connection import read_body
from mqlab.server.http.host import Host
from mqlab.server.http.listener import listen, url
from mqlab.wire.files import allow_many_files

_EVENTS = [(b"content-type", b"text/event-stream; charset=utf-8")]
_WORD = b"."
_MANY = 1 << 16


class _Open:
    """A stream that still gets chunks."""

    __slots__ = ("cycle", "left", "over", "write")

    def __init__(self, cycle: Any, left: int) -> None:
        self.cycle = cycle
        self.write = cycle.transport.write
        self.left = left
        self.over: asyncio.Future[None] = asyncio.get_running_loop().create_future()


class _Floor:
    """The application, and the pump that writes."""

    def __init__(self, setup: FloorSetup) -> None:
        self._setup = setup
        self._chunk = b"%x\r\n%b\r\n" % (len(setup.chunk), setup.chunk)
        self._open: list[_Open] = []

    def start(self) -> None:
        """Begin to listen for steps."""
        command = [sys.executable, "-P", "-m", "mqlab.bench.frontend.steps", str(self._setup.step_s)]
        steps = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0)
        assert steps.stdin is not None and steps.stdout is not None
        self.pid = steps.pid
        self._words, self._source = steps.stdin.fileno(), steps.stdout.fileno()
        self._held = steps  # its pipes close with it
        asyncio.get_running_loop().add_reader(self._source, self._step)

    async def app(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI."""
        del scope
        tokens = msgspec.json.decode(await read_body(receive))["max_tokens"]
        await send({"type": "http.response.start", "status": 200, "headers": _EVENTS})
        await send({"type": "http.response.body", "body": self._setup.head, "more_body": True})
        # uvicorn's send is a method of what has the transport; to call it for each chunk is not the least that can be done.
        stream = _Open(getattr(send, "__self__"), tokens)  # noqa: B009
        if not self._open:
            os.write(self._words, _WORD)
        self._open.append(stream)
        await stream.over
        await send({"type": "http.response.body", "body": self._setup.tail})

    def _step(self) -> None:
        os.read(self._source, 1 if self._open else _MANY)
        chunk = self._chunk
        ended = False
        for stream in self._open:
            if stream.cycle.flow.write_paused:
                continue
            stream.write(chunk)
            stream.left -= 1
            if not stream.left:
                stream.over.set_result(None)
                ended = True
        if ended:
            self._open = [stream for stream in self._open if stream.left]
            if not self._open:
                os.write(self._words, _WORD)


async def _serve(setup: FloorSetup) -> None:
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    config = ServerConfig(port=0)
    listener = listen(config)
    floor = _Floor(setup)
    floor.start()
    host = Host(floor.app, listener, config)
    await host.start()
    print(f"{FLOOR_READY}{url(config, listener)} (steps pid {floor.pid})", flush=True)
    await stop.wait()
    await host.cut()


def main() -> None:
    """Until SIGTERM."""
    end_with_parent()
    allow_many_files()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(msgspec.json.decode(sys.argv[1], type=FloorSetup)))


if __name__ == "__main__":
    main()
