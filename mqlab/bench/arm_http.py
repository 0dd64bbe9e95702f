"""An arm whose front serves OpenAI's route over HTTP, while a load process of its own sends the requests and reads the streams."""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial

import msgspec
import numpy as np

from mqlab.bench import local
from mqlab.bench.arm_run import Beside, Run, Seen, digest_text, summarise
from mqlab.bench.arm_work import Work, due_times, make_requests
from mqlab.bench.cpu import CpuReport
from mqlab.bench.load.driver import Load, LoadOutcome, run_load
from mqlab.bench.load.messages import Record
from mqlab.bench.memory import pss_mb
from mqlab.client.base import BaseClient
from mqlab.errors import BenchError
from mqlab.front.frontend import Frontend
from mqlab.server.loopback import open_http
from mqlab.types import Request

_FLUSH_S = 0.2
_LOAD_PROCESSES = 1


@asynccontextmanager
async def over_http(client: BaseClient, concurrency: int) -> AsyncIterator[Callable[[Work], Awaitable[Run]]]:
    """Serves the client while the block runs; gives what measures one run."""
    address, host = await open_http(Frontend.of(client))
    try:
        yield partial(_measure, client, f"{address}/v1/completions", concurrency)
    finally:
        await host.stop(_FLUSH_S)


async def _measure(client: BaseClient, url: str, concurrency: int, work: Work) -> Run:
    load = _load(make_requests(work, client.info), client.info.name, url, work, concurrency)
    before = await client.stats()
    watch = local.watch(client)
    outcome = await asyncio.to_thread(run_load, load, _LOAD_PROCESSES, on_start=watch.start)
    watch.stop()
    beside = Beside(
        cpu=_apart(watch.report, outcome),
        before=before,
        after=await client.stats(),
        pss_mb=pss_mb(local.processes(client)),
        load_busiest=max(one.busiest for one in outcome.loads),
    )
    return summarise(_seen(outcome), beside)


def _load(requests: Sequence[Request], model: str, url: str, work: Work, concurrency: int) -> Load:
    due_s = [at / 1e9 for at in due_times(work)]
    return Load(url, {}, [_body(request, model) for request in requests], due_s, max_concurrency=concurrency or None, keep_text=True)


def _body(request: Request, model: str) -> bytes:
    streamed = {"stream": True, "stream_options": {"include_usage": True}}
    wanted = {"temperature": 0.0, "max_tokens": request.params.max_tokens, "ignore_eos": True}
    return msgspec.json.encode({"model": model, "prompt": request.prompt, **wanted, **streamed})


def _apart(cpu: CpuReport, outcome: LoadOutcome) -> CpuReport:
    """The load processes are children of the front's; what they used is theirs."""
    load = sum(one.cpu_s for one in outcome.loads) / cpu.elapsed_s
    return replace(cpu, share={**cpu.share, "front": max(0.0, cpu.share["front"] - load), "load": load})


def _seen(outcome: LoadOutcome) -> Seen:
    failed = [record.error for record in outcome.records if record.error]
    if failed:
        raise BenchError(f"{len(failed)} of {len(outcome.records)} requests over HTTP failed; the first: {failed[0]}")
    starts = [max(record.sent_ns, record.due_ns) if record.due_ns == outcome.start_ns else record.due_ns for record in outcome.records]
    texts = [digest_text([record.text]) for record in outcome.records]
    return Seen(outcome.start_ns, starts, [_stamps(record) for record in outcome.records], [], texts)


def _stamps(record: Record) -> array[int]:
    """(stamp_ns, new tokens) of each event; a server that counts tokens only at the end is taken to have sent them evenly."""
    ends = np.round(np.linspace(0, record.output_tokens or 0, len(record.event_ns) + 1)).astype(np.int64)
    return array("q", np.column_stack((record.event_ns, np.diff(ends))).ravel().tolist())
