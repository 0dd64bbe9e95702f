"""A session whose model has two processes: whatever looks at processes sees both, and counts what each uses once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from small_model import write_small_model

from mqlab import cli
from mqlab.config import EngineConfig
from mqlab.contract.processes import gone
from mqlab.contract.waiting import until_sync
from mqlab.lab.running import Running
from mqlab.lab.session import Session
from mqlab.probes.running import pids
from mqlab.wire.wiring import Wiring

pytestmark = pytest.mark.full


@pytest.fixture(scope="module")
def wiring(tmp_path_factory: pytest.TempPathFactory, model_folder: Path) -> Wiring:
    model = write_small_model(tmp_path_factory.mktemp("model") / "three-heads", model_folder, kv_heads=3)
    return Wiring.of(EngineConfig(model=str(model), tensor_parallel_size=2, num_kv_blocks=96, num_threads=1, log_stats_interval=0))


@pytest.fixture(scope="module", params=["v1", "inproc"])
def lab(request: pytest.FixtureRequest, wiring: Wiring) -> Iterator[Session]:
    with Session(wiring, request.param) as session:
        session.generate_sync([1, 2, 3], max_tokens=4)
        yield session


def test_the_session_and_whoever_attaches_name_it(lab: Session) -> None:
    assert set(lab.pids) == {"front", "engine", "rank-1"}
    assert psutil.Process(lab.pids["rank-1"]).ppid() == lab.pids["engine"]
    assert pids(lab._hosted.entry) == lab.pids
    with Session.attach(lab._hosted.entry.pid, name="other") as other:
        assert other.pids == lab.pids


def test_both_ps_list_it(lab: Session, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["ps"]) == 0
    for shown in (capsys.readouterr().out, repr(Running({"lab": lab}))):
        (row,) = [line.split() for line in shown.splitlines() if "rank-1" in line]
        assert row[0] == str(lab.pids["rank-1"]) and row[3] == "s" and int(row[4]) > 1 and row[5] == "MiB"


def test_metrics_show_what_it_uses(lab: Session) -> None:
    until_sync(lambda: "CPU of rank-1" in repr(lab.metrics()), timeout=10)


def test_a_profile_samples_it(lab: Session, tmp_path: Path) -> None:
    capture = lab.profile(1, folder=tmp_path, idle=True)
    assert capture.part("rank-1").pid == lab.pids["rank-1"] and capture.part("rank-1").stacks.total


def test_a_measurement_counts_it_once_under_its_name(lab: Session) -> None:
    share = lab.bench(num_prompts=4, input_len=8, output_len=8, disable_tqdm=True).cpu.share
    assert share["rank-1"] > 0


def test_after_another_load_it_is_another_one(wiring: Wiring) -> None:
    with Session(wiring, "v1") as lab, Session.attach(lab.pids["engine"], name="other") as other:
        before = lab.pids["rank-1"]
        lab.sleep(2)
        until_sync(lambda: gone(before))
        assert "rank-1" not in lab.pids and "rank-1" not in other.pids
        lab.wake_up()
        assert other.pids == lab.pids and lab.pids["rank-1"] != before
