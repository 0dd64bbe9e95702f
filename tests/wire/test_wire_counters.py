"""Counters in shared memory: written by one, read by any."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqlab.errors import MqlabError
from mqlab.wire.counters import CAPACITY, CounterPage


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "engine-1.counters"


def test_a_reader_sees_what_is_written(path: Path) -> None:
    page = CounterPage.create(path)
    reader = CounterPage.open(path)
    assert reader.read() == {}
    steps = page.block("step.count", "step.ns")
    assert reader.read() == {"step.count": 0, "step.ns": 0}
    steps.write(3, -(2**63))
    page.block("loop.ticks").write(2**63 - 1)
    assert reader.read() == page.read() == {"step.count": 3, "step.ns": -(2**63), "loop.ticks": 2**63 - 1}


def test_the_same_names_are_the_same_counters(path: Path) -> None:
    page = CounterPage.create(path)
    page.block("a", "b").write(1, 2)
    page.block("a", "b").write(3, 4)
    assert page.read() == {"a": 3, "b": 4}


def test_another_process_reads_while_it_is_written(path: Path) -> None:
    page = CounterPage.create(path)
    page.block("a").write(7)
    code = "import sys, pathlib; from mqlab.wire.counters import CounterPage; print(CounterPage.open(pathlib.Path(sys.argv[1])).read())"
    assert subprocess.check_output([sys.executable, "-c", code, str(path)], text=True).strip() == "{'a': 7}"


def test_a_new_page_of_the_name_leaves_readers_the_old_one(path: Path) -> None:
    CounterPage.create(path).block("a").write(1)
    reader = CounterPage.open(path)
    CounterPage.create(path)
    assert reader.read() == {"a": 1}
    assert CounterPage.open(path).read() == {}


def test_a_full_page_refuses_and_stays_whole(path: Path) -> None:
    page = CounterPage.create(path)
    page.block(*(f"c{i}" for i in range(CAPACITY - 1))).write(*range(CAPACITY - 1))
    with pytest.raises(MqlabError, match=f"{CAPACITY - 1} of {CAPACITY} are taken"):
        page.block("one", "too many")
    with pytest.raises(MqlabError, match="56 bytes at most"):
        page.block("x" * 57)
    page.block("x" * 56).write(5)
    assert page.read() == {f"c{i}": i for i in range(CAPACITY - 1)} | {"x" * 56: 5}


def test_a_reader_cannot_write(path: Path) -> None:
    CounterPage.create(path)
    with pytest.raises(TypeError):
        CounterPage.open(path).block("a")


def test_a_torn_page_is_refused(path: Path) -> None:
    path.write_bytes(b"\0" * 100)
    with pytest.raises(ValueError, match="mmap length"):
        CounterPage.open(path)


def test_close_twice(path: Path) -> None:
    page = CounterPage.create(path)
    block = page.block("a")
    page.close()
    page.close()
    with pytest.raises(TypeError):
        block.write(1)


@given(st.dictionaries(st.text(min_size=1, max_size=14), st.integers(-(2**63), 2**63 - 1), max_size=20))
def test_any_counters_come_back(tmp_path_factory: pytest.TempPathFactory, counters: dict[str, int]) -> None:
    counters = {name: value for name, value in counters.items() if "\0" not in name and name.isprintable()}
    path = tmp_path_factory.mktemp("page") / "p"
    page = CounterPage.create(path)
    for name, value in counters.items():
        page.block(name).write(value)
    assert CounterPage.open(path).read() == counters
    page.close()
