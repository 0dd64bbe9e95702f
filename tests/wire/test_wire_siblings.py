"""What fronts of one server know of each other."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

from hypothesis import given
from hypothesis import strategies as st

from mqlab.contract.waiting import until_sync
from mqlab.wire.siblings import Siblings


def fronts(folder: Path, count: int) -> tuple[Siblings, list[Siblings]]:
    page = folder / "page"
    return Siblings.create(page, count), [Siblings.open(page, index) for index in range(count)]


def test_requests_of_the_others_are_those_of_all_but_itself(tmp_path: Path) -> None:
    launcher, (first, second, third) = fronts(tmp_path, 3)
    assert first.other_requests() == 0
    first.note_requests(5)
    second.note_requests(7)
    assert [front.other_requests() for front in (first, second, third)] == [7, 5, 12]
    launcher.clear(1)
    assert [front.other_requests() for front in (first, second, third)] == [0, 5, 5]


def test_nobody_waits_for_a_front_that_takes_nothing(tmp_path: Path) -> None:
    launcher, (first, second) = fronts(tmp_path, 2)
    assert not first.ahead(1000)
    assert not second.ahead(0)
    assert first.ahead(1000)
    launcher.clear(1)
    assert not first.ahead(1000)


def test_silence_counts_from_the_last_beat_of_the_process_that_is_there(tmp_path: Path) -> None:
    launcher, (first, _) = fronts(tmp_path, 2)
    assert launcher.silent_s(0) == 0
    first.beat()
    until_sync(lambda: launcher.silent_s(0) > 0.02)
    launcher.clear(0)
    assert (launcher.silent_s(0), launcher.silent_s(1)) == (0, 0)


def test_a_front_alone_is_never_ahead() -> None:
    alone = Siblings()
    assert (alone.ahead(10**6), alone.other_requests()) == (False, 0)


@given(counts=st.lists(st.integers(0, 10**5), min_size=2, max_size=4))
def test_the_one_with_fewest_is_never_ahead_and_one_with_many_more_is(counts: list[int]) -> None:
    with TemporaryDirectory() as folder:
        _, every = fronts(Path(folder), len(counts))
        for front, count in zip(every, counts, strict=True):
            front.ahead(count)
        ahead = [front.ahead(count) for front, count in zip(every, counts, strict=True)]
    least = min(counts)
    assert not any(is_ahead for is_ahead, count in zip(ahead, counts, strict=True) if count <= least + 1)
    assert all(is_ahead for is_ahead, count in zip(ahead, counts, strict=True) if count > 1.25 * least + 2)
