"""One of several front processes of a server: OpenAI's routes over an engine that the launcher owns, on a socket that it shares."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

import uvloop

from mqlab.config import ServerConfig
from mqlab.server.process.collector import spare_collector
from mqlab.server.process.httpfront import HttpFront
from mqlab.server.process.serving import wind_down
from mqlab.server.process.signals import Signals
from mqlab.topologies.v1_fronts import AttachedClient
from mqlab.topologies.v1_seats import Seat
from mqlab.wire import siblings
from mqlab.wire.report import Reporter
from mqlab.wire.siblings import Siblings
from mqlab.wire.wiring import Wiring

_BEAT_S = 0.5


def run(reporter: Reporter, run_dir: Path, *, wiring: Wiring, server: ServerConfig, seat: Seat, index: int, listener: int) -> None:
    """The front process: take the seat, serve until SIGTERM, then wind down as a server with one front does.

    Args:
        index: which of ``server.api_server_count`` it is.
        listener: file descriptor of the listening socket.
    """
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(reporter, run_dir, wiring, server, seat, index, _socket_of(listener)))


async def _serve(
    reporter: Reporter, run_dir: Path, wiring: Wiring, server: ServerConfig, seat: Seat, index: int, listener: socket.socket
) -> None:
    signals = Signals()
    others = Siblings.open(run_dir / siblings.PAGE, index)
    client = wiring.wrap_client(AttachedClient(wiring, seat, others))
    client.limit, client.max_pending = server.limit_concurrency, server.max_pending
    try:
        if not await signals.interrupts(client.start()):
            front = HttpFront(
                client, None, listener, server, index=index, count=server.api_server_count, siblings=others, tally_folder=run_dir
            )
            await front.start()
            spare_collector()
            beating = asyncio.get_running_loop().create_task(_beat(others))
            reporter.ready()
            await signals.stop.wait()
            await wind_down(front, hurry=signals.again, seconds=server.drain_timeout)
            await front.stop()
            beating.cancel()
    finally:
        await client.close()


async def _beat(page: Siblings) -> None:
    """Tell the launcher that this loop turns. One that hangs takes no connections: whoever asks for its health is answered by others."""
    while True:
        page.beat()
        await asyncio.sleep(_BEAT_S)


def _socket_of(descriptor: int) -> socket.socket:
    listener = socket.socket(fileno=descriptor)
    listener.setblocking(False)
    return listener
