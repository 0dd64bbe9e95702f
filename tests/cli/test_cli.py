"""The command: exit codes, messages, and what it loads."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from mqlab import cli
from mqlab.errors import EngineDeadError, EngineStartError


def test_help_and_version_succeed(capsys: pytest.CaptureFixture[str]) -> None:
    for argv in (["--help"], ["serve", "--help"], ["bench", "throughput", "--help"], ["--version"]):
        assert cli.main(argv) == 0
        assert capsys.readouterr().out


def test_the_engines_flags_are_grouped(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["serve", "--help=all"]) == 0
    shown = capsys.readouterr().out
    places = [
        shown.index(text) for text in ("The core: ", "--load-format", "Scheduling and", "--enable-prefix", "Speculation", "--prompt-lookup")
    ]
    assert places == sorted(places) and places[-1] < shown.index("The HTTP front:")


def test_failures_exit_with_one_and_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["fetch", "no-such-model"]) == 1
    assert capsys.readouterr().err == "mqlab: no model is known as 'no-such-model'; known: smollm2-135m\n"


def test_fetch_prints_the_folder(model_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["fetch", "smollm2-135m"]) == 0
    assert capsys.readouterr().out == f"{model_folder}\n"


@pytest.mark.parametrize(
    ("error", "shown"),
    [
        (EngineDeadError("it died", "Traceback (most recent call last): …"), "mqlab: it died\n"),
        (EngineStartError("it failed", 1, "Traceback (most recent call last): …"), "\nmqlab: it failed (exit code 1)\n"),
        (EngineStartError("killed", -9, "last\nwords\n"), "\nmqlab: killed (exit code -9)\nlast\nwords\n"),
        (EngineStartError("too slow"), "\nmqlab: too slow\n"),
    ],
)
def test_an_engines_traceback_is_not_shown(
    error: Exception, shown: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object) -> int:
        raise error

    monkeypatch.setattr("mqlab.server.launch.serve", fail)
    assert cli.main(["serve", "m"]) == 1
    assert capsys.readouterr().err == shown


def test_an_interrupt_is_no_traceback(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupt(*_: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr("mqlab.bench.throughput.main", interrupt)
    assert cli.main(["bench", "throughput"]) == 130
    assert capsys.readouterr().err == "mqlab: interrupted\n"


def test_help_loads_nothing_heavy(tmp_path: Path) -> None:
    heavy = ("torch", "numpy", "transformers", "zmq", "starlette", "uvicorn", "tokenizers", "prometheus_client", "psutil", "tqdm")
    code = f"import sys; from mqlab.cli import main; main(['serve', '--help']); print([n for n in {heavy} if n in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_serving_loads_no_torch_in_the_front_process(tmp_path: Path) -> None:
    code = "import sys, mqlab.server.launch; print([n for n in ('torch', 'transformers', 'numba') if n in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"
