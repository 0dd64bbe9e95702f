"""``%mqlab open``: whatever was saved is shown again, and what is nothing of the kind is refused by name."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from recordings import record

from mqlab.bench.arm_run import Run
from mqlab.bench.compare_options import CompareConfig
from mqlab.bench.comparison import Comparison
from mqlab.bench.device.result import DeviceResult
from mqlab.errors import ConfigError, ProfileError, TraceError
from mqlab.lab.opening import Saved, open_saved
from mqlab.model.measure.rows import Facts, Skip
from mqlab.record.capture import Capture, How
from mqlab.record.flame import Stacks
from mqlab.record.operators import TorchCapture
from mqlab.record.part import Part
from mqlab.record.trace import Trace


@pytest.fixture
def capture(tmp_path: Path) -> Capture:
    """A saved capture of two processes."""
    parts = (Part("engine", Stacks({("MainThread", "step"): 3}), 4, 11), Part("front", Stacks({("MainThread", "run"): 1}), 4, 12))
    return Capture(parts, How(seconds=1), tmp_path).save(tmp_path / "capture")


def test_recordings_and_traces(tmp_path: Path) -> None:
    recording = record(tmp_path / "recording")
    trace = open_saved(str(recording))
    assert isinstance(trace, Trace) and "1 finished" in repr(trace)
    again = open_saved(str(trace.save(tmp_path / "run")))
    assert isinstance(again, Trace) and repr(again) == repr(trace)


def test_captures(capture: Capture) -> None:
    for path in (capture.path, capture.speedscope, next(capture.path.glob("engine*.txt"))):
        opened = open_saved(str(path))
        assert isinstance(opened, Capture) and "step" in str(opened) and opened._repr_html_()


def chrome(path: Path, category: str) -> Path:
    event = {"name": "aten::add", "ph": "X", "cat": category, "ts": 0, "dur": 5, "pid": 1, "tid": 1}
    path.write_text(json.dumps({"traceEvents": [event]}))
    return path


def test_chrome_traces_are_torchs_or_go_to_perfetto(tmp_path: Path) -> None:
    opened = open_saved(str(chrome(tmp_path / "torch.json", "cpu_op")))
    assert isinstance(opened, TorchCapture) and [one.name for one in opened.operators] == ["aten::add"]
    with pytest.raises(ConfigError, match=r"ui\.perfetto\.dev"):
        open_saved(str(chrome(tmp_path / "other.json", "message")))


@pytest.mark.parametrize("key", ["elapsed_time", "avg_latency", "request_throughput", "us_per_running"])
def test_results_of_benches(tmp_path: Path, key: str) -> None:
    path = tmp_path / "result.json"
    path.write_text(json.dumps({key: 1.25, "lens": [1, 2], "label": "<run>", "none": None}))
    opened = open_saved(str(path))
    assert isinstance(opened, Saved) and opened.figures == {key: 1.25, "label": "<run>"} and opened.record["lens"] == [1, 2]
    assert "1.25" in repr(opened) and "&lt;run&gt;" in opened._repr_html_() and "result.json" in opened._repr_html_()


def test_a_device_is_shown_with_its_tables(tmp_path: Path) -> None:
    path = tmp_path / "gpu.json"
    result = DeviceResult(
        facts=Facts("cuda", "a GPU", 80.0, 79.0, 90), rows=(Skip("sweep", "all of it", "no time"),), workload={"size": "full"}
    )
    path.write_text(json.dumps(result.as_record()))
    opened = open_saved(str(path))
    assert isinstance(opened, DeviceResult) and repr(opened) == repr(result) and "Not measured" in opened._repr_html_()


def test_a_home_folder_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "result.json").write_text('{"avg_latency": 1.0}')
    assert isinstance(open_saved("~/result.json"), Saved)


def write(content: str | bytes, name: str = "file.json") -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        path = folder / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return make


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda folder: folder / "missing", "missing does not exist"),
        (lambda folder: folder, "neither a trace, nor a recording, nor a capture"),
        (write("{}"), "has the keys of no file"),
        (write("[1, 2]"), "Expected `object`"),
        (write(""), "truncated"),
        (write(bytes(range(256))), "malformed"),
        (write('{"verdict": "better"}'), "not whole: KeyError: 'runs'"),
        (write("", "empty.txt"), "no stacks"),
    ],
)
def test_what_is_nothing_of_ours_is_refused_in_a_line(tmp_path: Path, make: Callable[[Path], Path], words: str) -> None:
    with pytest.raises(ConfigError, match=words) as refused:
        open_saved(str(make(tmp_path)))
    assert "\n" not in str(refused.value) and str(tmp_path) in str(refused.value)


@pytest.mark.parametrize(
    ("make", "error"),
    [
        (write("import os\n", "code.py"), ProfileError),
        (write(bytes(range(256)), "bytes.bin"), ProfileError),
        (write('{"profiles": 3}'), ProfileError),
        (write('{"traceEvents": 3}'), ProfileError),
        (lambda folder: (folder / "run.mqtrace").mkdir() or folder / "run.mqtrace", TraceError),
    ],
)
def test_what_is_damaged_says_so(tmp_path: Path, make: Callable[[Path], Path], error: type[Exception]) -> None:
    with pytest.raises(error, match=str(tmp_path)):
        open_saved(str(make(tmp_path)))


def test_a_comparison_says_again_what_it_said(tmp_path: Path) -> None:
    runs = [[Run(1.0, 10, speed + i, speed, 1.0, 1.0, 1.0, {"front": 0.5}, 0.0, ["a"]) for i in range(3)] for speed in (10.0, 20.0)]
    comparison = Comparison(["aio", "mq"], runs, CompareConfig(rounds=3, num_prompts=1), {})
    path = tmp_path / "comparison.json"
    path.write_text(json.dumps(comparison.as_record()))
    opened = open_saved(str(path))
    assert isinstance(opened, Comparison) and opened.verdict == comparison.verdict and str(opened) == str(comparison)
