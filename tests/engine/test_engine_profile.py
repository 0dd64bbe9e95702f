"""The profiler of a core: two states, kinds by name."""

from __future__ import annotations

import cProfile
from pathlib import Path

import pytest

from mqlab.engine.profile import KINDS, Profiler
from mqlab.errors import CallError
from mqlab.wire.spec import Spec


class Fake:
    """A capture that notes what happened to it."""

    made: list[Fake] = []  # noqa: RUF012

    def __init__(self) -> None:
        self.steps = 0
        self.ended = ""
        Fake.made.append(self)

    def stepped(self) -> None:
        self.steps += 1

    def stop(self, path: Path) -> None:
        self.ended = "stopped"
        path.write_text("x")

    def drop(self) -> None:
        self.ended = "dropped"


@pytest.fixture
def fakes(monkeypatch: pytest.MonkeyPatch) -> list[Fake]:
    """Captures of the kind "fake" made so far."""
    monkeypatch.setitem(KINDS, "fake", (Spec(f"{__name__}:Fake"), ".fake"))
    monkeypatch.setattr(Fake, "made", made := [])
    return made


def test_a_capture_sees_the_steps_between_start_and_stop(fakes: list[Fake], tmp_path: Path) -> None:
    profiler = Profiler()
    profiler.stepped()
    path = profiler.start(str(tmp_path / "one"), "fake")
    profiler.stepped()
    assert profiler.stop() == path and Path(path).read_text() == "x"
    profiler.stepped()
    assert [(fake.steps, fake.ended) for fake in fakes] == [(1, "stopped")]


def test_the_default_file_is_named_for_its_kind(fakes: list[Fake]) -> None:
    path = Path(Profiler().start(None, "fake"))
    assert path.suffix == ".fake" and len(fakes) == 1
    path.unlink()


def test_close_drops_a_capture(fakes: list[Fake], tmp_path: Path) -> None:
    profiler = Profiler()
    profiler.start(str(tmp_path / "one"), "fake")
    profiler.close()
    profiler.close()
    assert fakes[0].ended == "dropped"
    with pytest.raises(CallError, match="start_profile first"):
        profiler.stop()


def test_an_unknown_kind_names_the_known_ones() -> None:
    with pytest.raises(CallError, match="unknown kind of profile 'perf'; known: cprofile, torch"):
        Profiler().start(None, "perf")


def test_what_cannot_start_leaves_no_file_and_can_be_tried_again(tmp_path: Path, runtime_dir: Path) -> None:
    before = set(runtime_dir.iterdir())
    profiler, other = Profiler(), cProfile.Profile()
    other.enable()
    try:
        profiler.start()
        refused = ""
    except CallError as error:
        refused = str(error)
    finally:
        other.disable()
    # Before Python 3.12 profilers pile up instead.
    assert not refused or "end the other profiler first" in refused
    if not refused:
        Path(profiler.stop()).unlink()
    assert set(runtime_dir.iterdir()) == before
    assert profiler.start(str(tmp_path / "again")) and profiler.stop()


def test_a_file_that_cannot_be_written_ends_the_capture_all_the_same(tmp_path: Path) -> None:
    profiler = Profiler()
    (tmp_path / "folder").mkdir()
    profiler.start(str(tmp_path / "folder" / "x"))
    (tmp_path / "folder").rmdir()
    with pytest.raises(CallError, match="could not be written"):
        profiler.stop()
    with pytest.raises(CallError, match="start_profile first"):
        profiler.stop()
