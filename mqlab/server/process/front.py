"""A front process that somebody launched: an engine client behind a private socket, and behind OpenAI's routes beside it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import uvloop

from mqlab.client.base import BaseClient
from mqlab.errors import EngineStartError
from mqlab.server.attach.native import Door
from mqlab.server.process.signals import Signals
from mqlab.topologies import make_client
from mqlab.wire.report import Reporter
from mqlab.wire.wiring import Wiring


def run(
    reporter: Reporter,
    run_dir: Path,
    *,
    topology: str,
    preset: str,
    options: dict[str, Any],
    wiring: Wiring,
    openai: bool,
    recording: Path | None,
) -> None:
    """The front process: start the engine, listen, serve until SIGTERM. See FrontClient for the arguments."""

    async def main() -> None:
        signals = Signals()
        client = make_client(topology, wiring, preset=preset, log_to_terminal=True, **options)
        client.publish(run_dir)
        try:
            if not await signals.interrupts(client.start()):
                await _serve(client, reporter, run_dir, openai, recording, signals)
        except EngineStartError as error:
            reporter.failed(error.cause, error.log_tail)
            raise
        finally:
            await client.close()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())


async def _serve(client: BaseClient, reporter: Reporter, run_dir: Path, openai: bool, recording: Path | None, signals: Signals) -> None:
    address = await _open_http(client) if openai and client.info.path else None
    await Door.open(client, run_dir, url=address, recording=recording)
    reporter.ready()
    # Nobody closes what was opened: the end of the process does, which whoever launched it waits for.
    await signals.stop.wait()


async def _open_http(client: BaseClient) -> str:
    # Imported where it is needed: without a tokenizer there is no text, and a third of the start is saved.
    from mqlab.front.frontend import Frontend
    from mqlab.server.loopback import open_http

    address, _ = await open_http(Frontend.of(client))
    return address
