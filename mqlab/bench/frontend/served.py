"""The server under test: ``python -m mqlab.bench.frontend.served JSON``, what ``mqlab serve`` runs, over an echo core or a model's."""

from __future__ import annotations

import sys
from dataclasses import replace

import msgspec

from mqlab.bench.frontend.leaving import end_with_parent
from mqlab.bench.frontend.setups import ServedSetup
from mqlab.config import EngineConfig, ServerConfig, Timing
from mqlab.errors import MqlabError
from mqlab.server.launch import serve
from mqlab.wire.wiring import Wiring


def _engine(setup: ServedSetup) -> EngineConfig:
    """All streams run at once."""
    return EngineConfig(model=setup.model, max_num_seqs=setup.streams, max_num_batched_tokens=max(1024, setup.streams))


def _wiring(setup: ServedSetup, engine: EngineConfig, timing: Timing) -> Wiring | None:
    """An echo core whose device takes its time; None for what ``engine`` says by itself."""
    if not setup.step_s:
        return None
    wiring = Wiring.of(engine, timing=timing)
    return replace(wiring, core=replace(wiring.core, kwargs={**wiring.core.kwargs, "device_time": setup.step_s}))


def main() -> None:
    """Until SIGTERM."""
    end_with_parent()
    setup = msgspec.json.decode(sys.argv[1], type=ServedSetup)
    engine, timing = _engine(setup), Timing()
    server = ServerConfig(port=0, topology=setup.topology, api_server_count=setup.api_server_count, record=setup.record)
    try:
        sys.exit(serve(engine, server, timing, wiring=_wiring(setup, engine, timing)))
    except MqlabError as error:
        sys.exit(f"{type(error).__name__}: {error}")


if __name__ == "__main__":
    main()
