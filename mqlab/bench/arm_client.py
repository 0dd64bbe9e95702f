"""An arm that reads its streams itself, each in a task, from a client or from the front above it."""

from __future__ import annotations

import asyncio
import time
from array import array
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from mqlab.bench import local
from mqlab.bench.arm_run import Beside, Run, Seen, digest_ids, digest_text, summarise
from mqlab.bench.arm_work import Work, due_times, make_requests
from mqlab.bench.memory import pss_mb
from mqlab.client.base import BaseClient
from mqlab.types import Request


async def measure(client: BaseClient, generate: local.Generate, work: Work, concurrency: int, *, text: bool) -> Run:
    """One run: all requests at once, ``concurrency`` at a time, or each when it is due.

    Args:
        text: what is generated has text, too.
    """
    requests = make_requests(work, client.info)
    before = await client.stats()
    with local.watch(client) as cpu:
        seen = await _run_all(generate, requests, due_times(work), concurrency, text)
    beside = Beside(cpu=cpu.report, before=before, after=await client.stats(), pss_mb=pss_mb(local.processes(client)))
    return summarise(seen, beside)


async def _run_all(generate: local.Generate, requests: list[Request], due: list[int], concurrency: int, text: bool) -> Seen:
    gate = asyncio.Semaphore(concurrency or len(requests))
    begin = time.monotonic_ns()
    seen = Seen(begin, [begin + at for at in due], [array("q") for _ in requests])

    async def one(index: int) -> tuple[str, str]:
        await _until(seen.starts[index])
        async with gate:
            if not due[index]:
                seen.starts[index] = time.monotonic_ns()
            stream = generate(requests[index])
            return await _read(stream, seen.stamps[index], text)

    digests = await local.all_of([one(index) for index in range(len(requests))])
    seen.outputs = [ids for ids, _ in digests]
    seen.texts = [digest for _, digest in digests] if text else []
    return seen


async def _until(due_ns: int) -> None:
    while (left_ns := due_ns - time.monotonic_ns()) > 0:  # a timer may be a fraction of a millisecond early
        await asyncio.sleep(left_ns / 1e9)


async def _read(stream: AsyncGenerator[Any, None], stamps: array[int], text: bool) -> tuple[str, str]:
    """Read one request to its end: appends (stamp_ns, number of new tokens) pairs, gives the digests of its tokens and of its text."""
    tokens: array[int] = array("q")
    texts: list[str] = []
    async with aclosing(stream) as pieces:
        async for piece in pieces:
            stamps.extend((time.monotonic_ns(), len(piece.tokens)))
            tokens.extend(piece.tokens)
            if text:
                texts.append(piece.text)
    return digest_ids(tokens), digest_text(texts)
