"""Many compilations, several at once."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any

from mqlab_kernels import catalogue
from mqlab_kernels.compile.worker import Job, Worker
from mqlab_kernels.kernel import Kernel

TIMEOUT_S = 60.0
"""What spills compiles for long; what takes longer than this is no candidate."""


def jobs_of(kernel: Kernel, capabilities: Sequence[int], *, swept: int = 0) -> list[Job]:
    """The compilations of a kernel: of each case and capability the shipped config, then of the first ``swept`` cases all others."""
    shipped = [
        Job(kernel.name, place, kernel.sweep.index(kernel.choose(case.constants, capability)), capability)
        for place, case in enumerate(kernel.cases)
        for capability in capabilities
    ]
    every = [
        Job(kernel.name, place, config, capability)
        for place in range(len(kernel.cases[:swept]))
        for config in range(len(kernel.sweep))
        for capability in capabilities
    ]
    return shipped + [job for job in every if job not in set(shipped)]


def alike(jobs: Sequence[Job]) -> list[list[Job]]:
    """The jobs, those together that give Triton the same: cases that differ only in what a launch passes."""
    groups: dict[tuple[Any, ...], list[Job]] = {}
    for job in jobs:
        groups.setdefault(_given(job), []).append(job)
    return list(groups.values())


def _given(job: Job) -> tuple[Any, ...]:
    """All that decides what comes out of a job, but for the code."""
    kernel = catalogue.kernel(job.kernel)
    case, config = kernel.cases[job.case], kernel.sweep[job.config]
    constants = {**case.constants, **config.constants}
    what = sorted(case.types.items()), sorted(constants.items()), sorted(case.aligned), config.num_warps, config.num_stages
    return job.kernel, job.capability, repr(what)


def compile_all(jobs: Sequence[Job], *, workers: int | None = None, timeout_s: float = TIMEOUT_S) -> Iterator[tuple[Job, dict[str, Any]]]:
    """Each job with what ``Worker.run`` says of it, as they end; ``workers`` processes, one a processor unless told.

    What is ``alike`` is compiled once.
    """
    groups = alike(jobs)
    waiting: SimpleQueue[list[Job] | None] = SimpleQueue()
    done: SimpleQueue[tuple[list[Job], dict[str, Any]] | BaseException] = SimpleQueue()
    count = min(workers or os.cpu_count() or 1, len(groups))
    for group in [*groups, *[None] * count]:
        waiting.put(group)
    with tempfile.TemporaryDirectory(prefix="mqlab-kernels-", ignore_cleanup_errors=True) as folder, ExitStack() as ending:
        for number in range(count):
            worker = ending.enter_context(Worker(Path(folder) / str(number), timeout_s))
            thread = Thread(target=_serve, args=(worker, waiting, done), name=f"compiler {number}")
            ending.callback(thread.join)
            ending.callback(worker.interrupt)
            thread.start()
        ending.callback(_drain, waiting, count)
        for _ in groups:
            answer = done.get()
            if isinstance(answer, BaseException):
                raise answer
            yield from ((job, answer[1]) for job in answer[0])


def _serve(worker: Worker, waiting: SimpleQueue[list[Job] | None], done: SimpleQueue[Any]) -> None:
    """Feed a worker until the queue says that there is no more."""
    try:
        while (group := waiting.get()) is not None:
            done.put((group, worker.run(group[0])))
    except BaseException as error:
        done.put(error)


def _drain(waiting: SimpleQueue[list[Job] | None], workers: int) -> None:
    """Take away what nobody will wait for, so that threads end with the job at hand."""
    with suppress(Empty):
        while True:
            waiting.get_nowait()
    for _ in range(workers):
        waiting.put(None)
