"""Counts of several fronts: added up, kept, and never the reason why something fails."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mqlab.server.metrics.tally import SharedTally, Tally

DIGEST = 2**64 - 7


def shared(folder: Path, index: int, size: int = 3) -> SharedTally:
    return SharedTally(size, DIGEST, folder, index)


def test_one_alone_counts_for_itself() -> None:
    tally = Tally(2)
    tally.words[1] += 2
    assert list(tally.sums()) == [0, 2]
    assert tally.pids() == {0: os.getpid()}


@settings(max_examples=25)
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2), st.floats(0, 1e6)), max_size=30))
def test_any_front_adds_up_all(tmp_path_factory: pytest.TempPathFactory, counts: list[tuple[int, int, float]]) -> None:
    folder = tmp_path_factory.mktemp("tallies")
    fronts = [shared(folder, index) for index in range(4)]
    for front, word, value in counts:
        fronts[front].words[word] += value
    wanted = [sum(value for _, word, value in counts if word == number) for number in range(3)]
    for front in fronts:
        assert list(front.sums()) == pytest.approx(wanted)


def test_whoever_comes_after_a_front_goes_on_with_its_counts(tmp_path: Path) -> None:
    stays = shared(tmp_path, 0)
    for _ in range(3):
        shared(tmp_path, 1).words[2] += 1
    assert list(stays.sums()) == [0, 0, 3], "the dead one's are counted, once"
    assert set(stays.pids()) == {0, 1}


def test_a_file_of_another_layout_starts_anew(tmp_path: Path) -> None:
    for other in (SharedTally(3, 1, tmp_path, 0), SharedTally(4, DIGEST, tmp_path, 0)):
        other.words[0] = 99
        assert list(shared(tmp_path, 0).sums()) == [0, 0, 0]


@pytest.mark.parametrize("content", [b"", b"half", b"x" * 4096])
def test_what_is_no_tally_is_passed_over(tmp_path: Path, content: bytes) -> None:
    tally = shared(tmp_path, 0)
    tally.words[0] += 1
    for name in ("front-1.tally", "front-x.tally", "front-2.tally", "else"):
        (tmp_path / name).write_bytes(content)
    assert list(tally.sums()) == [1, 0, 0]
    (tmp_path / "front-3.tally").mkdir()
    assert list(tally.sums()) == [1, 0, 0]


def test_a_siblings_file_that_is_lost_keeps_counting_as_it_was(tmp_path: Path) -> None:
    one = shared(tmp_path, 0)
    shared(tmp_path, 1).words[0] += 5
    assert list(one.sums()) == [5, 0, 0]
    (tmp_path / "front-1.tally").write_bytes(b"cut")
    assert list(one.sums()) == [5, 0, 0]
    shared(tmp_path, 1)
    assert list(one.sums()) == [0, 0, 0], "its successor has begun anew"


@pytest.mark.parametrize("kind", ["missing", "a file", "a folder in its place"])
def test_counting_goes_on_where_no_file_can_be(tmp_path: Path, kind: str, caplog: pytest.LogCaptureFixture) -> None:
    folder = tmp_path / "folder"
    if kind == "a file":
        folder.touch()
    elif kind == "a folder in its place":
        (folder / "front-0.tally").mkdir(parents=True)
    tally = shared(folder, 0)
    tally.words[1] += 1
    assert list(tally.sums()) == [0, 1, 0]
    assert tally.pids() == {0: os.getpid()}
    assert "front 0 keeps its counts to itself" in caplog.text
