"""Ctrl-C, or a stop from outside, in each phase of ``mqlab serve`` and ``mqlab bench``: quiet, in bounded time, nothing left (C13).

Stops beside open streams are in tests/server/test_server_launch.py, beside a dead or stopped engine in test_cases_kill.py.
"""

from __future__ import annotations

import signal
from pathlib import Path

import psutil
import pytest
from serving import mqlab_command, running

from mqlab.contract.processes import ended
from mqlab.contract.waiting import until_sync

BOUND_S = 10.0
PHASES = {"loads": "loading weights", "warms up": "warming up", "serves": "mqlab serving"}
SMALL = ["--num-threads", "1", "--kv-cache-gb", "0.1"]


def interrupted(command: list[str], folder: Path, phase: str, *numbers: signal.Signals) -> tuple[int, str]:
    """Run until its output shows ``phase``, send signals; the exit status and all that it wrote."""
    with running(command, folder) as process:
        until_sync(lambda: phase in process.text(), 60)
        children = psutil.Process(process.popen.pid).children(recursive=True)
        for number in numbers:
            process.popen.send_signal(number)
        status = process.popen.wait(BOUND_S)
        assert all(map(ended, children))
        return status, process.text()


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda number: number.name)
@pytest.mark.parametrize("topology", ["inproc", pytest.param("aio", marks=pytest.mark.full), "mq"])
def test_serve(tmp_path: Path, topology: str, number: signal.Signals, phase: str) -> None:
    command = mqlab_command("serve", "smollm2-135m", "--port", "0", "--topology", topology, *SMALL)
    status, text = interrupted(command, tmp_path, PHASES[phase], number)
    assert status == 0, text
    assert "Traceback" not in text
    assert "terminate called" not in text


@pytest.mark.parametrize(("topology", "phase"), [("inproc", "loading weights"), ("inproc", "warm-up:"), ("v1", "warm-up:")])
def test_bench(tmp_path: Path, topology: str, phase: str) -> None:
    command = mqlab_command("bench", "throughput", "--topology", topology, *SMALL)
    status, text = interrupted(command, tmp_path, phase, signal.SIGINT)
    assert status == 130, text
    assert text.rstrip().endswith("mqlab: interrupted")
    assert "Traceback" not in text
