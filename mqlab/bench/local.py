"""Engines that a benchmark starts itself: which core, how its start is shown, what fits, how requests are run."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Iterable, Sequence
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any, Protocol, TypeVar

from mqlab.bars import progress_bar
from mqlab.bench.cpu import CpuWatch
from mqlab.bench.datasets import ByteTokenizer, Encoder
from mqlab.client.base import BaseClient
from mqlab.client.contract import EngineClient
from mqlab.config import EngineConfig, LoadFormat, Settings, Timing
from mqlab.errors import ConfigError
from mqlab.front.frontend import Frontend
from mqlab.models.echoed import ECHO
from mqlab.models.resolve import resolve
from mqlab.text.tokenizer import Tokenizer
from mqlab.topologies import find_layout, make_client
from mqlab.types import ModelInfo, Request
from mqlab.wire.wiring import Wiring

_SHOW_EVERY_S = 0.5

T = TypeVar("T")


def wiring_of(engine: EngineConfig, codec: str, timing: Timing) -> Wiring:
    """What ``engine`` describes: a real core, or with the model name ``echo`` or ``echo:MODEL`` one that answers at once.

    Raises:
        ModelError: an echo shall have the tokenizer of a model that is not here.
    """
    make = Wiring.echo if engine.model == ECHO else Wiring.of
    return make(engine, codec=codec, timing=timing)


def folder_of(engine: EngineConfig) -> Path | None:
    """Where the model, or the tokenizer of an echo, lies; fetched where it is not here. None for ``echo``, which has none in a bench.

    Raises:
        ModelError: there is no such model.
    """
    return None if engine.model == ECHO else resolve(engine.model, Settings.read().cache_dir, load_format=engine.load_format)


def tokenizer_of(model: str, load_format: LoadFormat = "auto") -> Tokenizer | None:
    """The tokenizer of a model by its name; None for ``echo``.

    Raises:
        ModelError: there is no such model, or no tokenizer in it.
    """
    folder = folder_of(EngineConfig(model=model, load_format=load_format))
    return None if folder is None else Tokenizer.load(folder)


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
    with progress_bar("engine starts", shown=find_layout(topology).own_process, bar_format="{desc}: {elapsed}") as bar:
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


def processes(client: BaseClient) -> dict[str, int]:
    """Process ids by role: this one, which is the front, and those that its layout has started."""
    return {"front": os.getpid(), **client.processes}


def watch(client: BaseClient) -> CpuWatch:
    """Who uses the processors: front, engine and whatever else the layout has, others."""
    return CpuWatch(processes(client))


class Piece(Protocol):
    """What a request gained: a delta of a client, or an output of a front."""

    @property
    def tokens(self) -> Sequence[int]: ...


Generate = Callable[[Request], AsyncGenerator[Piece, None]]
"""Streams a request."""


def generating(client: EngineClient, *, text: bool) -> Generate:
    """How requests are run: at the level of tokens, or with text, decoded piece by piece as a server does it."""
    if not text:
        return client.generate
    front = Frontend.of(client)
    return lambda request: front.generate(list(request.prompt), request.params, request_id=request.id)


async def count_tokens(generate: Generate, request: Request) -> int:
    """Run a request to its end; the number of its new tokens."""
    count = 0
    async with aclosing(generate(request)) as pieces:
        async for piece in pieces:
            count += len(piece.tokens)
    return count


async def all_of(works: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """Run all to their end; the first error cancels the others: a run with failed requests has no result."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(work) for work in works]
    except ExceptionGroup as errors:
        raise errors.exceptions[0] from None
    return [task.result() for task in tasks]


def check_fits(prompt_tokens: int, output_tokens: int, info: ModelInfo) -> None:
    """Refuse requests that the engine could never hold.

    Raises:
        ConfigError: names lengths and limit.
    """
    room = min(info.max_model_len, info.max_prompt_len + 1)
    if prompt_tokens + output_tokens > room:
        raise ConfigError(
            f"a request of {prompt_tokens} prompt and {output_tokens} new tokens needs {prompt_tokens + output_tokens} tokens; "
            f"{info.name!r} holds {room}: shorten it (--input-len, --output-len), or raise --max-model-len or --num-kv-blocks"
        )
