"""A session whose layout has a third process: whatever looks at processes sees it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from mqlab.contract.processes import gone
from mqlab.contract.waiting import until_sync
from mqlab.lab.session import Session
from mqlab.probes.running import pids
from mqlab.wire.spec import Spec
from mqlab.wire.wiring import Wiring

ROLES = ("front", "engine", "detokenizer")
HELLO = "Hello there world"


@pytest.fixture(scope="module")
def lab(model_folder: Path) -> Iterator[Session]:
    with Session(Wiring(Spec("mqlab.engine.echo:build", {"path": str(model_folder)})), "detok_chain") as session:
        assert session.generate_sync(HELLO, max_tokens=3).text == HELLO
        yield session


def test_the_session_names_its_processes(lab: Session) -> None:
    assert set(lab.pids) == set(ROLES) and len(set(lab.pids.values())) == len(ROLES)
    assert "detokenizer" in psutil.Process(lab.pids["detokenizer"]).cmdline()
    assert pids(lab._hosted.entry) == lab.pids


def test_whoever_attaches_sees_it_too(lab: Session) -> None:
    with Session.attach(lab.pids["engine"], name="other") as other:
        assert other.pids == lab.pids


def test_metrics_and_picture_have_it(lab: Session) -> None:
    until_sync(lambda: all(f"CPU of {role}" in repr(lab.metrics()) for role in ROLES), timeout=10)
    picture = lab.dashboard()._repr_html_()
    assert all(f"pid {pid}" in picture for pid in lab.pids.values())


def test_its_messages_are_in_the_trace(lab: Session) -> None:
    writer = f"detokenizer-{lab.pids['detokenizer']}"
    until_sync(lambda: writer in lab.trace().to_pandas("messages")["writer"].unique(), timeout=10)
    edges = lab.trace().edges()
    assert set(edges[edges["receiver"] == writer]["edge"]) == {"to_detokenizer"}
    assert set(edges[edges["sender"] == writer]["edge"]) == {"to_engine_core", "from_detokenizer"}


def test_a_profile_samples_it(lab: Session, tmp_path: Path) -> None:
    capture = lab.profile(1, folder=tmp_path)
    assert {part.role: part.pid for part in capture.parts} == lab.pids


def test_it_ends_with_the_session(lab: Session) -> None:
    before = lab.pids
    lab.stop()
    until_sync(lambda: all(gone(pid) for role, pid in before.items() if role != "front"))


def test_a_layout_may_name_a_socket_as_it_likes(model_folder: Path) -> None:
    """The ring has one named ``front``, and the session opens one of its own in the same folder."""
    with Session(Wiring(Spec("mqlab.engine.echo:build", {"path": str(model_folder)})), "detok_ring") as session:
        assert session.generate_sync(HELLO, max_tokens=3).text == HELLO
        with Session.attach(session.pids["engine"], name="other") as other:
            assert other.generate_sync(HELLO, max_tokens=3).text == HELLO
