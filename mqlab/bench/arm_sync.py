"""The arm without a client: the core stepped in a plain loop, as the caller of a synchronous engine does. No event loop, no thread.

Source: LLMEngine.step of vLLM V0, which detokenises in the step; ``benchmark_throughput.py`` without ``--async-engine``.
"""

from __future__ import annotations

import os
import select
import time
from array import array
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import IO

from mqlab.bench.arm_run import Beside, Run, Seen, digest_ids, digest_text, summarise
from mqlab.bench.arm_work import Work, due_times, make_requests
from mqlab.bench.cpu import CpuWatch
from mqlab.bench.memory import pss_mb
from mqlab.engine.core import Core, apply, step
from mqlab.errors import BenchError
from mqlab.types import Event, Request, Step

_LOOK_NS = 200_000_000


def measure(core: Core, work: Work, concurrency: int, still_wanted: Callable[[], bool]) -> Run:
    """One run: all requests at once, ``concurrency`` at a time, or each when it is due.

    Args:
        still_wanted: asked a few times a second; False ends the process.

    Raises:
        BenchError: a request failed.
    """
    requests, due = make_requests(work, core.info), due_times(work)
    processes = {"front": os.getpid()}
    before = core.calls["stats"]()
    with CpuWatch(processes) as cpu:  # its first look takes milliseconds, before the run begins
        seen = _Plain(core, requests, due, concurrency, still_wanted).to_its_end()
    return summarise(seen, Beside(cpu=cpu.report, before=before, after=core.calls["stats"](), pss_mb=pss_mb(processes)))


def parent_listens(pipe: IO[bytes]) -> bool:
    """Whether the other end of a pipe, which says nothing while a run lasts, is open."""
    return not select.select([pipe], [], [], 0)[0]


@dataclass
class _Got:
    """Of one request."""

    index: int
    tokens: array[int] = field(default_factory=lambda: array("q"))
    texts: list[str] = field(default_factory=list)


class _Plain:
    """One run of a core in a loop."""

    def __init__(self, core: Core, requests: list[Request], due: list[int], concurrency: int, still_wanted: Callable[[], bool]) -> None:
        self._core = core
        self._coming = deque(zip(requests, due, strict=True))
        self._seats = concurrency or len(requests)
        self._got = {request.id: _Got(index) for index, request in enumerate(requests)}
        self._live = 0
        self._still_wanted = still_wanted
        self._look_ns = 0
        begin = time.monotonic_ns()
        self._seen = Seen(begin, [begin + at for at in due], [array("q") for _ in requests])

    def to_its_end(self) -> Seen:
        """Run all."""
        while self._coming or self._live:
            self._hand_over()
            if self._core.has_work:
                self._take(step(self._core))
            else:
                time.sleep(max(0, self._next_ns() - time.monotonic_ns()) / 1e9)
            self._look()
        got = self._got.values()
        self._seen.outputs = [digest_ids(one.tokens) for one in got]
        self._seen.texts = [digest_text(one.texts) for one in got] if any(one.texts for one in got) else []
        return self._seen

    def _next_ns(self) -> int:
        return self._seen.begin_ns + self._coming[0][1]

    def _hand_over(self) -> None:
        while self._coming and self._live < self._seats and self._next_ns() <= time.monotonic_ns():
            request, due = self._coming.popleft()
            if not due:
                self._seen.starts[self._got[request.id].index] = time.monotonic_ns()
            self._live += 1
            self._take(apply(self._core, request))

    def _take(self, events: list[Event]) -> None:
        now, got, stamps = time.monotonic_ns(), self._got, self._seen.stamps
        for event in events:
            assert isinstance(event, Step), "nobody calls this core"
            for delta in event.deltas:
                if delta.error is not None:
                    raise BenchError(f"request {delta.id} failed: {delta.error.message}")
                one = got[delta.id]
                stamps[one.index].extend((now, len(delta.tokens)))
                one.tokens.extend(delta.tokens)
                if delta.text is not None:
                    one.texts.append(delta.text)
                self._live -= delta.finish is not None

    def _look(self) -> None:
        now = time.monotonic_ns()
        if now >= self._look_ns:
            self._look_ns = now + _LOOK_NS
            if not self._still_wanted():
                os._exit(0)
