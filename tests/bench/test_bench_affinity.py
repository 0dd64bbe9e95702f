"""Who is held to which CPUs."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from mqlab.bench.affinity import pin

pytestmark = pytest.mark.skipif(not hasattr(os, "sched_setaffinity") or len(os.sched_getaffinity(0)) < 2, reason="Linux, two CPUs")


@pytest.fixture
def pids() -> Iterator[dict[str, int]]:
    """Processes that wait."""
    children = {
        role: subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
        for role in ("front", "engine", "rank-1", "detokenizer")
    }
    yield {role: child.pid for role, child in children.items()}
    for child in children.values():
        child.communicate(b"\n")


def test_ranks_have_the_cpus_of_the_engine_and_helpers_those_of_the_front(pids: dict[str, int]) -> None:
    first, second = sorted(os.sched_getaffinity(0))[:2]
    pin(f"{first}/{second}", pids)
    held = {role: os.sched_getaffinity(pid) for role, pid in pids.items()}
    assert held == {"front": {first}, "engine": {second}, "rank-1": {second}, "detokenizer": {first}}
