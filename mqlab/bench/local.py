"""Engines that a benchmark starts itself: which core, how its start is shown, what fits, where the result goes."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

from mqlab.bars import progress_bar
from mqlab.bench.cpu import CpuWatch
from mqlab.bench.datasets import ByteTokenizer, Encoder
from mqlab.client.base import BaseClient, EngineClient
from mqlab.config import EngineConfig, Settings, Timing
from mqlab.errors import ConfigError
from mqlab.models.resolve import resolve
from mqlab.text.tokenizer import Tokenizer
from mqlab.topologies import OWN_PROCESS, make_client
from mqlab.types import ModelInfo, Request
from mqlab.wire.wiring import Wiring

ECHO = "echo"
"""The model name that stands for no model at all: prompts come back, and the layout's own cost is measured."""

_SHOW_EVERY_S = 0.5


def wiring_of(engine: EngineConfig, codec: str, timing: Timing) -> Wiring:
    """What ``engine`` describes: a real core, or with the model name ``echo`` one that answers at once."""
    make = Wiring.echo if engine.model == ECHO else Wiring.of
    return make(engine, codec=codec, timing=timing)


def tokenizer_of(model: str) -> Tokenizer | None:
    """The tokenizer of a model by its name; None for ``echo``.

    Raises:
        ModelError: there is no such model, or no tokenizer in it.
    """
    return None if model == ECHO else Tokenizer.load(resolve(model, Settings.read().cache_dir))


def encoder_of(info: ModelInfo) -> Encoder:
    """What turns a dataset's text into ids for a running engine: bytes, where its core has no tokenizer."""
    return Tokenizer.load(Path(info.path)) if info.path else ByteTokenizer(info.vocab_size, info.eos_token_ids)


@asynccontextmanager
async def started(topology: str, wiring: Wiring) -> AsyncIterator[BaseClient]:
    """A client of an engine that runs, closed afterwards. While an engine of its own process loads, the seconds are shown.

    Raises:
        EngineStartError: it never became ready.
    """
    client = make_client(topology, wiring)
    # In one process the loading model shows its own progress.
    with progress_bar("engine starts", shown=topology in OWN_PROCESS, bar_format="{desc}: {elapsed}") as bar:
        ticking = asyncio.create_task(_tick(bar))
        try:
            await client.start()
        finally:
            ticking.cancel()
    try:
        yield client
    finally:
        await client.close()


async def _tick(bar: Any) -> None:
    while True:
        bar.refresh()
        await asyncio.sleep(_SHOW_EVERY_S)


def watch(client: EngineClient) -> CpuWatch:
    """Who uses the processors: front, engine, others."""
    engine = {} if client.info.pid == os.getpid() else {"engine": client.info.pid}
    return CpuWatch({"front": os.getpid(), **engine})


async def count_tokens(client: EngineClient, request: Request) -> int:
    """Run a request to its end; the number of its new tokens."""
    count = 0
    async with aclosing(client.generate(request)) as deltas:
        async for delta in deltas:
            count += len(delta.tokens)
    return count


def check_fits(prompt_tokens: int, output_tokens: int, info: ModelInfo) -> None:
    """Refuse a request that the engine could never hold.

    Raises:
        ConfigError: names lengths and limit.
    """
    room = min(info.max_model_len, info.max_prompt_len + 1)
    if prompt_tokens + output_tokens > room:
        raise ConfigError(
            f"a request of {prompt_tokens} prompt and {output_tokens} new tokens needs {prompt_tokens + output_tokens} tokens; "
            f"{info.name!r} holds {room}: shorten it (--input-len, --output-len), or raise --max-model-len or --num-kv-blocks"
        )


def check_output(path: str | None) -> None:
    """Find out before the run whether its result will have a place.

    Raises:
        ConfigError: the file's folder does not exist.
    """
    if path is not None and not Path(path).resolve().parent.is_dir():
        raise ConfigError(f"--output-json={path!r}: its folder does not exist; make it first")


def write_output(path: str | None, record: Mapping[str, Any]) -> None:
    """Write a result where one was asked for."""
    if path is not None:
        Path(path).write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")


def tell(notes: Iterable[str]) -> None:
    """Say on stderr what was asked for and is not done."""
    for note in notes:
        print(f"mqlab: {note}", file=sys.stderr)
