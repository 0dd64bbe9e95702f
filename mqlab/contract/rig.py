"""The contract of EngineClient as checks that any topology can be put through.

A check is an async function of a ``Rig``; the modules of this package hold them by theme. A rig is all that a check knows of the
topology: how to make a client from a wiring, and whether the engine has a process of its own. Run one without pytest:

    asyncio.run(check(Rig("mine", MyClient)))
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import threading
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psutil

from mqlab.client.base import BaseClient
from mqlab.config import Settings, Timing
from mqlab.contract.waiting import until
from mqlab.types import Delta, EngineStats, ModelInfo, Request, SamplingParams
from mqlab.wire.process import ENGINE
from mqlab.wire.spec import Spec
from mqlab.wire.wiring import Wiring

# Every interval at most 100 ms; limits so wide that a busy machine never trips one.
FAST = Timing(start_timeout=60, health_interval=0.05, step_limit=60, idle_interval=0.05, stop_grace=0.1, stopped_limit=0.5)
# For engines that are stopped for a while and then live on, or are closed as they are.
PATIENT = replace(FAST, stopped_limit=60)
# For hangs that must be seen: nothing else is short.
ALERT = replace(FAST, step_limit=0.4)

SEEN_S = 5.0
"""Death must be noticed within this."""

CLOSE_S = 2.0
"""Close must return within this."""

ENDLESS = SamplingParams(max_tokens=None, ignore_eos=True)
Check = Callable[["Rig"], Coroutine[Any, Any, None]]


@dataclass(frozen=True)
class Rig:
    """One topology under test.

    Attributes:
        name: as the test is named.
        make: a client that is not started yet, from a wiring; picklable where scripts are to run it.
        codec: for every socket.
        own_process: the engine is a child; it can be killed, and hangs without holding the front.
        roles: of its children, where it has any.
        sees_hangs: a step beyond its limit is noticed while it lasts.
        steps_apart: the front's loop turns while the engine steps.
        merges: what a reader has not read yet is one delta; a layout that queues its deltas does not.
        streams: how many it can have open at once; None for no limit of its own.
    """

    name: str
    make: Callable[[Wiring], BaseClient]
    codec: str = "msgpack"
    own_process: bool = True
    roles: tuple[str, ...] = (ENGINE,)
    sees_hangs: bool = True
    steps_apart: bool = True
    merges: bool = True
    streams: int | None = None

    @property
    def children(self) -> int:
        """How many processes a client launches."""
        return len(self.roles) if self.own_process else 0

    @property
    def helpers(self) -> tuple[str, ...]:
        """Roles of its children beside the engine."""
        return tuple(role for role in self.roles if role != ENGINE) if self.own_process else ()

    def wiring(self, *, echo: dict[str, Any] | None = None, timing: Timing = FAST, **faults: Any) -> Wiring:
        """An echo core, with faults around it where any are given; even ``slow_build=0`` brings the wrapper and its control calls."""
        wraps = (Spec("mqlab.probes.faults:FaultyCore", faults),) if faults else ()
        return Wiring(Spec("mqlab.engine.echo:build", echo or {}), wraps, codec=self.codec, timing=timing)

    def client(self, *, echo: dict[str, Any] | None = None, timing: Timing = FAST, **faults: Any) -> BaseClient:
        """A client over ``wiring``."""
        return self.make(self.wiring(echo=echo, timing=timing, **faults))


def applies(check: Check, rig: Rig) -> bool:
    """Whether a check says anything about a rig."""
    return all(getattr(rig, need) for need in getattr(check, "needs", ()))


def needs(*attributes: str) -> Callable[[Check], Check]:
    """Marks a check that only rigs with these attributes can be put through."""

    def mark(check: Check) -> Check:
        check.needs = attributes  # type: ignore[attr-defined]
        return check

    return mark


def every_codec(check: Check) -> Check:
    """Marks a check that is worth running over every codec."""
    check.every_codec = True  # type: ignore[attr-defined]
    return check


def full(check: Check) -> Check:
    """Marks a check that takes long."""
    check.full = True  # type: ignore[attr-defined]
    return check


def checks_of(module: Any) -> list[Check]:
    """The checks that a module defines, in order."""
    return [value for name, value in vars(module).items() if name.startswith("check_")]


# --- requests


def ask(id: str, *, prompt: tuple[int, ...] = (3, 4, 5), params: SamplingParams = ENDLESS, **changes: Any) -> Request:
    """A request to an echo core; without more it runs for 8,000 tokens."""
    return Request(id, list(prompt), params, **changes)


def echo_of(request: Request, count: int) -> list[int]:
    """What an echo core answers."""
    return [request.prompt[i % len(request.prompt)] for i in range(count)]


async def read(stream: AsyncGenerator[Delta, None]) -> tuple[list[int], str | None]:
    """All tokens of a stream and why it ended; holds the stream to what every reader may rely on."""
    tokens: list[int] = []
    finish = None
    async for delta in stream:
        assert finish is None, "nothing follows the last delta"
        assert delta.tokens or delta.finish, "a delta says something"
        tokens += delta.tokens
        finish = delta.finish
    return tokens, finish


async def run(client: BaseClient, request: Request) -> tuple[list[int], str | None]:
    """A request from begin to end."""
    return await read(client.generate(request))


async def run_all(client: BaseClient, requests: Iterable[Request], at_once: int | None) -> list[tuple[list[int], str | None]]:
    """``run`` of each, so many at once."""
    room = asyncio.Semaphore(at_once) if at_once else contextlib.nullcontext()

    async def in_turn(request: Request) -> tuple[list[int], str | None]:
        async with room:
            return await run(client, request)

    return await asyncio.gather(*map(in_turn, requests))


async def begin(client: BaseClient, request: Request) -> AsyncGenerator[Delta, None]:
    """A request that has its first tokens."""
    stream = client.generate(request)
    delta = await anext(stream)
    assert delta.tokens
    return stream


async def begin_load(client: BaseClient, model: str) -> asyncio.Task[ModelInfo]:
    """A load that the engine is at."""
    load = asyncio.create_task(client.load(model))
    async with asyncio.timeout(SEEN_S):
        while (await client.check()).phase != "loading":
            await asyncio.sleep(0)
    return load


async def assert_serves(client: BaseClient) -> None:
    """The engine is well: an ordinary request gets an ordinary answer."""
    request = ask("well?", prompt=(7, 8), params=SamplingParams(max_tokens=5))
    assert await run(client, request) == (echo_of(request, 5), "length")
    assert (await client.check()).ok


async def settled(client: BaseClient, timeout: float = SEEN_S) -> EngineStats:
    """The core's stats once no request is live in it.

    Raises:
        TimeoutError: requests are still live; the message has the last stats.
    """
    deadline = time.monotonic() + timeout
    while (stats := await client.stats()).running or stats.waiting:
        if time.monotonic() > deadline:
            raise TimeoutError(f"requests are live after {timeout:g} s: {stats}")
        await asyncio.sleep(0)
    assert stats.blocks_used == 0, "blocks were not given back"
    return stats


async def outcome(awaitable: Awaitable[Any], timeout: float = SEEN_S) -> Any:
    """What an awaitable returned, or raised; within ``timeout`` seconds."""
    async with asyncio.timeout(timeout):
        return (await asyncio.gather(awaitable, return_exceptions=True))[0]


async def outcomes(awaitables: list[Any], timeout: float = SEEN_S) -> list[Any]:
    """``outcome`` of several at once."""
    async with asyncio.timeout(timeout):
        return list(await asyncio.gather(*awaitables, return_exceptions=True))


# --- what is left


def engine_processes(role: str = "") -> set[psutil.Process]:
    """Children of this process that run an engine, or help one; by their role where one is named."""
    found = set()
    for child in psutil.Process().children():
        try:
            command = child.cmdline()
            if "mqlab.wire.boot" in command and role in ("", command[-1]):
                found.add(child)
        except psutil.Error:
            continue
    return found


async def the_engine() -> psutil.Process:
    """The one engine process, loading or serving."""
    return await the_child(ENGINE)


async def the_child(role: str) -> psutil.Process:
    """The one child of a role."""
    await until(lambda: engine_processes(role))
    (process,) = engine_processes(role)
    return process


@dataclass(frozen=True)
class Held:
    """What this process holds of the machine at one moment."""

    fds: frozenset[tuple[int, str]]
    threads: frozenset[int | None]
    tasks: frozenset[int]
    processes: frozenset[int]
    files: frozenset[Path]


def held() -> Held:
    """Open files and sockets, threads, tasks of the running loop, engine processes, run folders."""
    return Held(
        frozenset(_open_files()),
        frozenset(thread.ident for thread in threading.enumerate()),
        frozenset(id(task) for task in asyncio.all_tasks()),
        frozenset(process.pid for process in engine_processes()),
        frozenset(run_folders()),
    )


def run_folders() -> list[Path]:
    """Private folders of engines that this process launched."""
    return list(Settings.read().runtime_dir.glob(f"mqlab-{os.getpid()}-*"))


def assert_nothing_new(before: Held) -> None:
    """Everything that was taken since ``before`` has been given back."""
    after = held()
    for kind in vars(before):
        new = getattr(after, kind) - getattr(before, kind)
        assert not new, f"{kind} left: {new}"


def _open_files() -> list[tuple[int, str]]:
    found = []
    for entry in Path("/proc/self/fd").iterdir():
        try:
            found.append((int(entry.name), str(entry.readlink())))
        except FileNotFoundError:  # the descriptor that lists the folder
            continue
    return found


class Stopwatch:
    """Seconds since it was made."""

    def __init__(self) -> None:
        self._begin = time.monotonic()

    @property
    def seconds(self) -> float:
        """So far."""
        return time.monotonic() - self._begin


async def pass_time(seconds: float) -> None:
    """Let the loop run for a while: only where the passing of time is itself what is tried."""
    watch = Stopwatch()
    await until(lambda: watch.seconds >= seconds, timeout=seconds + 5)


def without_collector() -> Callable[[], None]:
    """Turn the garbage collector off; returns what turns it on again."""
    gc.collect()
    gc.disable()
    return gc.enable
