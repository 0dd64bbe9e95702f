"""The whole sweep: every kernel compiled for each of its cases, with every config and for every GPU.

That is thousands of compilations. They are split into tests of a few minutes, which workers share, and what came out is kept in pytest's
cache as long as the code is the same: a second run compiles only what changed, one with ``--cache-clear`` everything.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

import pytest
from compiling import KERNELS, REMEDY, ROOT, differing, wrong
from mqlab_kernels import catalogue
from mqlab_kernels.compile.survey import alike, compile_all, jobs_of
from mqlab_kernels.compile.table import Table
from mqlab_kernels.compile.worker import Job
from mqlab_kernels.kernel import CAPABILITIES, Kernel

AT_ONCE = 90
"""Compilations of one test, one to two minutes of a processor."""
TIMEOUT_S = 300.0
"""Of one compilation: none may fail, on a machine that does other things, too."""


def parts_of(kernel: Kernel) -> list[list[Job]]:
    """All compilations of a kernel, in parts that take about as long; what is alike is in the same."""
    groups = alike(jobs_of(kernel, CAPABILITIES, swept=len(kernel.cases)))
    count = math.ceil(len(groups) / AT_ONCE)
    return [list(chain.from_iterable(groups[first::count])) for first in range(count)]


PARTS = [pytest.param(part, id=f"{kernel.name}-{number}") for kernel in KERNELS for number, part in enumerate(parts_of(kernel), 1)]


@pytest.fixture
def kept(request: pytest.FixtureRequest) -> Path:
    """A folder of the test for what it found, another one once what reads the compilers' output is another."""
    cache = request.config.cache
    assert cache is not None
    sources = sorted((ROOT / "kernels" / "mqlab_kernels" / "compile").glob("*.py"))
    code = hashlib.sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()
    return cache.mkdir(f"kernels-{code[:16]}") / request.node.name


@pytest.mark.full
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("jobs", PARTS)
def test_all_of_the_sweep_compiles_and_what_spills_does_not_ship(jobs: list[Job], kept: Path) -> None:
    table = Table.load(catalogue.kernel(jobs[0].kernel), kept)
    for job, outcome in compile_all([job for job in jobs if job not in table.rows], workers=1, timeout_s=TIMEOUT_S):
        table.add(job, outcome)
    assert set(jobs) <= table.rows.keys()
    assert wrong([table]) == []
    table.save(kept)
    assert differing([table]) == [], REMEDY


def test_the_parts_are_the_whole_sweep() -> None:
    every = {Job(kernel.name, *place, sm) for kernel in KERNELS for place in _places(kernel) for sm in CAPABILITIES}
    jobs = [job for kernel in KERNELS for part in parts_of(kernel) for job in part]
    assert len(jobs) == len(every)
    assert set(jobs) == every


def _places(kernel: Kernel) -> Iterator[tuple[int, int]]:
    return ((case, config) for case in range(len(kernel.cases)) for config in range(len(kernel.sweep)))
