"""Operators summed up from a trace of torch.profiler."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from mqlab.errors import ProfileError
from mqlab.record.operators import TorchCapture


def event(name: str, ts: float, dur: float, cat: str = "cpu_op", tid: int | str = 1) -> dict[str, Any]:
    return {"ph": "X", "cat": cat, "name": name, "ts": ts, "dur": dur, "pid": 1, "tid": tid, "args": {"External id": 3}}


EVENTS = [
    event("linear", 0, 100),
    event("matmul", 10, 60),
    event("mm", 20, 30),
    event("mm", 60, 5),
    event("add", 80, 10),
    event("linear", 100, 50),
    event("add", 0, 1000, tid=2),
    event("gemm_kernel", 500, 300, "kernel", "stream 7"),
    event("Memcpy HtoD", 500, 100, "gpu_memcpy", "stream 7"),
    event("a python function", 0, 5000, "python_function"),
    {"ph": "M", "name": "process_name", "pid": 1, "args": {"name": "python"}},
]


def load(tmp_path: Path) -> TorchCapture:
    path = tmp_path / "x.trace.json"
    path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": EVENTS}))
    return TorchCapture.load(path)


def test_own_time_is_without_what_an_operator_called(tmp_path: Path) -> None:
    found = {(one.where, one.name): (one.calls, one.own_us, one.total_us) for one in load(tmp_path).operators}
    assert found == {
        ("cpu", "linear"): (2, 100 - 60 - 10 + 50, 150),
        ("cpu", "matmul"): (1, 60 - 30 - 5, 60),
        ("cpu", "mm"): (2, 35, 35),
        ("cpu", "add"): (2, 1010, 1010),
        ("device", "gemm_kernel"): (1, 300, 300),
        ("device", "Memcpy HtoD"): (1, 100, 100),
    }


def test_the_most_time_comes_first_and_shares_are_of_their_place(tmp_path: Path) -> None:
    first, second = load(tmp_path).top(2)
    assert (first.name, second.name, second.share) == ("add", "gemm_kernel", 0.75)


def test_it_shows_itself(tmp_path: Path) -> None:
    capture = load(tmp_path)
    text = "".join(ElementTree.fromstring(f"<div>{capture._repr_html_()}</div>").itertext())
    assert "gemm_kernel" in text and "ui.perfetto.dev" in text and str(capture.path) in text
    assert "6 operators" in repr(capture) and "gemm_kernel" in str(capture)
    assert list(capture.to_pandas().columns) == ["name", "where", "calls", "own_us", "total_us", "share"]


@pytest.mark.parametrize("text", [None, "", "{}", '{"traceEvents": 3}'])
def test_what_is_no_trace_is_said(text: str | None, tmp_path: Path) -> None:
    if text is not None:
        (tmp_path / "x").write_text(text)
    with pytest.raises(ProfileError, match=r"is no trace of torch.profiler: .* give the file that stop_profile named"):
        TorchCapture.load(tmp_path / "x")
