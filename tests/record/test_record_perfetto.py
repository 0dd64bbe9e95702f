"""Chrome trace JSON: every event is where its stamp says, and what belongs together is joined."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from recordings import ENGINE, FRONT, record

from mqlab.errors import TraceError
from mqlab.record.metadata import write_meta
from mqlab.record.trace import Trace


@pytest.fixture
def exported(tmp_path: Path) -> dict[str, Any]:
    folder = record(tmp_path / "run")
    write_meta(folder, seed=7)
    path = Trace.of(folder).export(tmp_path / "run.json")
    return json.loads(path.read_text())


def process(exported: dict[str, Any], name: str) -> int:
    (pid,) = (event["pid"] for event in exported["traceEvents"] if event["name"] == "process_name" and event["args"]["name"] == name)
    return pid


def test_every_event_is_well_formed(exported: dict[str, Any]) -> None:
    named = {(event["pid"], event["tid"]) for event in exported["traceEvents"] if event["name"] == "thread_name"}
    for event in exported["traceEvents"]:
        assert {"ph", "name", "pid", "tid"} <= event.keys()
        if event["ph"] != "M":
            assert event["ts"] >= 0 and (event["pid"], event["tid"]) in named
        assert event.get("dur", 0) >= 0
    assert exported["otherData"]["runs"]["run"]["seed"] == 7
    assert Counter(event["ph"] for event in exported["traceEvents"] if event["ph"] != "M") == {
        **{"X": 3 * 6 + 8, "s": 4, "f": 4, "b": 3, "e": 3, "C": 5 + 2},
    }


def test_parts_fill_their_step(exported: dict[str, Any]) -> None:
    engine = process(exported, ENGINE)
    slices = [event for event in exported["traceEvents"] if event["ph"] == "X" and event["pid"] == engine]
    (whole, *_) = (event for event in slices if event["name"] == "step")
    assert (whole["ts"], whole["dur"], whole["args"]["sequences"]) == (4000, 10_000, 1)
    parts = [event for event in slices if event["tid"] == whole["tid"] and event is not whole and event["ts"] < 14_000]
    assert [(event["name"], event["ts"], event["dur"]) for event in parts] == [
        ("schedule", 4000, 1000),
        ("launch", 5000, 1000),
        ("device", 6000, 6000),
        ("sample", 12_000, 1000),
        ("output", 13_000, 1000),
    ]


def test_arrows_join_the_calls_of_a_message(exported: dict[str, Any]) -> None:
    slices = [event for event in exported["traceEvents"] if event["ph"] == "X"]
    starts = {event["id"]: event for event in exported["traceEvents"] if event["ph"] == "s"}
    ends = {event["id"]: event for event in exported["traceEvents"] if event["ph"] == "f"}
    assert starts.keys() == ends.keys() and len(starts) == 4
    for id, start in starts.items():
        assert start["ts"] <= ends[id]["ts"]
        for event in (start, ends[id]):
            around = [
                call["name"]
                for call in slices
                if (call["pid"], call["tid"]) == (event["pid"], event["tid"]) and call["ts"] <= event["ts"] <= call["ts"] + call["dur"]
            ]
            assert around, "an arrow binds to the slice around it"
    first = starts[f"run/output/{ENGINE}/0"]
    assert (first["pid"], first["ts"], ends[first["id"]]["ts"]) == (process(exported, ENGINE), 15_000, 16_500)


def test_requests_are_spans(exported: dict[str, Any]) -> None:
    spans: dict[str, list[tuple[str, int, float]]] = {}
    for event in exported["traceEvents"]:
        if event.get("cat") == "request":
            spans.setdefault(event["name"], []).append((event["ph"], event["pid"], event["ts"]))
    front, engine = process(exported, FRONT), process(exported, ENGINE)
    assert spans == {
        "request a": [("b", front, 0), ("e", front, 58_500)],
        "queued": [("b", engine, 2000), ("e", engine, 5000)],
        "decoding": [("b", front, 18_500), ("e", front, 58_500)],
    }


def test_runs_and_roles_stay_apart(tmp_path: Path) -> None:
    merged = Trace.merge(Trace.of(record(tmp_path / name)) for name in ("one", "two"))
    events = json.loads(merged.export(tmp_path / "both.json").read_text())["traceEvents"]
    names = [event["args"]["name"] for event in events if event["name"] == "process_name"]
    assert sorted(names) == sorted(f"{writer} ({run})" for run in ("one", "two") for writer in (FRONT, ENGINE, "observer-13"))
    assert len({event["pid"] for event in events if event["name"] == "process_name"}) == 6


def test_only_json_is_written(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"a Chrome trace is a \.json file"):
        Trace.of(record(tmp_path / "run")).export(tmp_path / "run.pb")
