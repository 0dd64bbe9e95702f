"""``mqlab bench device``: what a GPU reaches at its best, and what of that kernels, decode steps and engines reach, in one run of minutes.

Ceilings come first, then what is wanted most (``plan.py``), and what the time no longer suffices for is listed. Jobs run one after
the other in a process of their own (``worker.py``); one that crashes or hangs costs its own figure. Engines run in processes of
their own as those of ``mqlab compare`` do, while nobody else is on the device. With ``--size small`` the same code runs on a few tokens,
without a GPU in Triton's interpreter: that shows that it works, and nothing else.
"""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

from mqlab.bars import progress_bar
from mqlab.bench.cpu import CpuWatch
from mqlab.bench.device.engines import Group, rates
from mqlab.bench.device.jobs import Job
from mqlab.bench.device.options import DeviceConfig
from mqlab.bench.device.plan import TINY, plan
from mqlab.bench.device.process import Jobs
from mqlab.bench.device.result import DeviceResult
from mqlab.bench.output import told, write_output
from mqlab.errors import BenchError, ConfigError
from mqlab.model.measure.rows import Facts, Row, Skip
from mqlab.record.metadata import environment
from mqlab.wire.spec import Spec

_LOOK_S = 120.0
_LEAST_S = 1.0


def main(config: DeviceConfig) -> int:
    """``device``, with its progress and result printed and, where asked for, the result written to a file.

    Returns:
        0; 3 where a kernel does not agree with its reference.

    Raises:
        as ``device``; ConfigError as well for a file that cannot be written.
    """
    result = told(lambda: device(config), config.output_json)
    return 3 if result.wrong else 0


def device(config: DeviceConfig) -> DeviceResult:
    """Run the benchmark. Not from a thread that runs an event loop.

    After each job what there is so far is written to ``output_json``: the machine may be gone before the last one.

    Raises:
        ConfigError: it asks for a GPU, or for sizes that only a GPU can do, and there is none. BenchError: the device cannot be looked at.
    """
    begin = time.monotonic()
    with CpuWatch({"device": os.getpid()}) as cpu, Jobs() as jobs, _tiny_model() as tiny:
        facts = _look(jobs, config)
        empty = DeviceResult(facts=facts, rows=(), workload=config.as_record(), meta=environment())

        def so_far(rows: Sequence[Row]) -> DeviceResult:
            return replace(empty, rows=tuple(rows), elapsed_s=time.monotonic() - begin)

        def keep(rows: Sequence[Row]) -> None:
            with suppress(OSError):  # a full disk: rows in memory outlive it, and whoever writes the result reports it
                write_output(config.output_json, so_far(rows).as_record())

        rows = _Budget(jobs, begin + 60 * config.max_minutes, keep).run(plan(config, facts, tiny))
    return replace(so_far(rows), cpu=cpu.report)


def _look(jobs: Jobs, config: DeviceConfig) -> Facts:
    answer = jobs.run(Spec("mqlab.model.measure.place:look", {"device": config.device}), _LOOK_S)
    if answer.error:
        raise BenchError(f"the device cannot be looked at: {answer.error}")
    if not answer.rows:
        raise ConfigError("--device='cuda' is not possible: torch sees no GPU; run `nvidia-smi`, and install torch's CUDA build")
    facts: Facts = answer.rows[0]
    if facts.kind == "cpu" and config.size == "full":
        raise ConfigError(
            "--size='full' needs a GPU, and torch sees none; pass --size small for a run that shows only that all of it works"
        )
    return facts


@contextmanager
def _tiny_model() -> Iterator[str]:
    """A folder with the config of a model of two layers; its name, by which it is cached with a tokenizer, is always the same."""
    with tempfile.TemporaryDirectory(prefix="mqlab-") as parent:
        folder = Path(parent, "tiny")
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps(TINY), encoding="utf-8")
        yield str(folder)


class _Budget:
    """Runs what there is to run, for as long as there is time.

    Args:
        until: of the monotonic clock.
        keep: is told all rows so far, after each item.
    """

    def __init__(self, jobs: Jobs, until: float, keep: Callable[[Sequence[Row]], object]) -> None:
        self._jobs = jobs
        self._until = until
        self._keep = keep

    def run(self, items: Sequence[Job | Group | Skip]) -> list[Row]:
        """The rows of all that could be run, and what could not."""
        rows: list[Row] = []
        with progress_bar("measuring", total=len(items), unit="job") as bar:
            for item in items:
                bar.set_postfix_str(f"{item.part}: {item.name}")
                rows += self._rows(item)
                self._keep(rows)
                bar.update()
        return rows

    def _rows(self, item: Job | Group | Skip) -> list[Row]:
        if isinstance(item, Skip):
            return [item]
        left = self._until - time.monotonic()
        if left < item.seconds:
            return [Skip(item.part, item.name, f"takes about {item.seconds:.0f} s; {max(left, 0):.0f} s of --max-minutes were left")]
        return self._grouped(item, left) if isinstance(item, Group) else self._job(item, left)

    def _grouped(self, group: Group, left: float) -> list[Row]:
        self._jobs.rest()  # the engines have the device to themselves
        try:
            return rates(group, min(group.limit_s, left))
        except Exception as error:  # minutes of other figures must not go with it
            return [Skip(group.part, group.name, f"it failed: {type(error).__name__}: {error}")]

    def _job(self, job: Job, left: float) -> list[Row]:
        answer = self._jobs.run(job.call, min(job.limit_s, max(left, _LEAST_S)))
        return [*answer.rows, job.failed(answer.error)] if answer.error else list(answer.rows)
