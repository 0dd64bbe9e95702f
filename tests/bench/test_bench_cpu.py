"""Who used the processors."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest

from mqlab.bench.cpu import CpuWatch, Reading, compare

BURN = "import time; begin = time.process_time()\nwhile time.process_time() - begin < {}: pass"


def burn(seconds: float) -> None:
    begin = time.process_time()
    while time.process_time() - begin < seconds:
        pass


def used(watch: CpuWatch, name: str) -> float:
    """CPU seconds of a name."""
    return watch.report.share[name] * watch.report.elapsed_s


def test_a_child_that_ended_counts_with_its_parent() -> None:
    with CpuWatch({}) as watch:
        subprocess.run([sys.executable, "-c", BURN.format(0.3)], check=True)
    assert used(watch, "self") >= 0.28


def test_a_named_child_counts_under_its_own_name_only() -> None:
    code = f"{BURN.format(0.3)}\nprint(flush=True)\ninput()"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        with CpuWatch({"engine": child.pid, "front": os.getpid()}) as watch:
            assert child.stdout is not None and child.stdout.readline() == b"\n"
        child.communicate(b"\n")
    assert set(watch.report.share) == {"engine", "front"}
    assert used(watch, "engine") >= 0.28 and used(watch, "front") < used(watch, "engine")


def test_one_process_may_have_two_names() -> None:
    with CpuWatch({"front": os.getpid(), "engine": os.getpid()}) as watch:
        burn(0.1)
    assert watch.report.share["front"] == watch.report.share["engine"] > 0
    assert 0 <= watch.report.foreign <= 1


def test_what_is_gone_is_absent() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child, CpuWatch({"engine": child.pid}) as watch:
        child.communicate(b"\n")
    assert set(watch.report.share) == {"self"}


def test_foreign_is_what_the_machine_did_without_us(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("psutil.cpu_count", lambda: 4)
    start, end = Reading(10.0, 100.0, {1: 5.0, 2: 1.0, 3: 0.0}), Reading(20.0, 124.0, {1: 9.0, 2: 3.0})
    report = compare(start, end, {"front": 1, "again": 1, "engine": 2, "gone": 3})
    assert report.share == pytest.approx({"front": 0.4, "again": 0.4, "engine": 0.2})
    assert report.foreign == pytest.approx((24 - 6) / 10 / 4)
    assert report.as_record()["cores"] == 4
