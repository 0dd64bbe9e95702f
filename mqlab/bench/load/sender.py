"""Sends each request when it is due, however the server fares, and stamps what comes back."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Sequence

import aiohttp
from yarl import URL

from mqlab.bench.load.answer import Answer, AnswerError
from mqlab.bench.load.messages import Call, Job, Record

_KEEPALIVE_S = 3.0
"""Below the 5 s of uvicorn and others: a connection that the server is about to close must not be used again."""


def open_session(job: Job) -> aiohttp.ClientSession:
    """As many connections as there are requests under way, kept open between requests; aiohttp sets TCP_NODELAY on each."""
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=_KEEPALIVE_S, ttl_dns_cache=None),
        timeout=aiohttp.ClientTimeout(total=job.timeout_s),
        # A compressed stream would arrive in lumps.
        headers={"Content-Type": "application/json", "Accept-Encoding": "identity"} | job.headers,
    )


class Sender:
    """Runs calls against one URL.

    Attributes:
        ended: calls of this run whose answer is over, or has failed.
    """

    def __init__(self, job: Job, session: aiohttp.ClientSession) -> None:
        self._job = job
        self._session = session
        self._url = URL(job.url)
        self._slots = asyncio.Semaphore(job.max_concurrency) if job.max_concurrency else contextlib.nullcontext()
        self.ended = 0

    async def run(self, calls: Sequence[Call], start_ns: int) -> list[Record]:
        """Send calls, in the order of their times, which count from ``start_ns``; returns when all are over."""
        self.ended = 0
        records = [Record(call.index, start_ns + call.at_ns) for call in calls]
        async with asyncio.TaskGroup() as group:
            for call, record in zip(calls, records, strict=True):
                await _until(record.due_ns)
                group.create_task(self._send(call.body, record))
        return records

    async def _send(self, body: bytes, record: Record) -> None:
        record.woken_ns = time.monotonic_ns()
        async with self._slots:
            record.sent_ns = time.monotonic_ns()
            record.error = await self._exchange(body, record)
            record.end_ns = time.monotonic_ns()
        self.ended += 1

    async def _exchange(self, body: bytes, record: Record) -> str:
        """Why it failed; empty when it did not."""
        try:
            async with self._session.post(self._url, data=body) as response:
                if response.status != 200:
                    return f"HTTP {response.status}: {await response.text():.300}"
                try:
                    await self._read(response.content, record)
                except AnswerError as error:
                    return f"{error}{_unlike_a_stream(response.content_type)}"
        except TimeoutError:
            return f"no whole answer within {self._job.timeout_s:g} s (--request-timeout)"
        except (aiohttp.ClientError, OSError, ValueError) as error:
            return f"{type(error).__name__}: {error}"
        return ""

    async def _read(self, content: aiohttp.StreamReader, record: Record) -> None:
        answer = Answer(record, self._job.keep_text)
        while data := await content.readany():
            answer.feed(data, time.monotonic_ns())
        answer.close()


def _unlike_a_stream(content_type: str) -> str:
    """What explains a bad answer: that it never said it was a stream."""
    return "" if content_type == "text/event-stream" else f"; it came as {content_type}: are --base-url and --endpoint an OpenAI API's?"


async def _until(due_ns: int) -> None:
    """Wait; one that is due already lets the others run, too: all at once must not mean that the first is sent last."""
    await asyncio.sleep(0)
    while (left_ns := due_ns - time.monotonic_ns()) > 0:  # a timer may be a fraction of a millisecond early
        await asyncio.sleep(left_ns / 1e9)
