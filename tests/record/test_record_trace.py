"""Traces read from recordings, saved, loaded, merged; every number of a made-up run is known."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from recordings import ENGINE, FRONT, MS, T0, at, record, step, write_counters, write_events, write_requests

from mqlab.errors import TraceError
from mqlab.record.columns import records
from mqlab.record.events import HEADER_BYTES, MESSAGE, STEP, EventLog
from mqlab.record.metadata import write_meta
from mqlab.record.requests import EngineRow, FrontRow, join_rows, rejoin
from mqlab.record.tables import COLUMNS
from mqlab.record.trace import Trace
from mqlab.wire.counters import PAGE_BYTES, CounterPage


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return record(tmp_path / "run")


def assert_same(first: Trace, second: Trace) -> None:
    assert first.meta == second.meta
    for name in COLUMNS:
        assert first.tables[name].equals(second.tables[name]), name


def test_tables_hold_what_was_written(folder: Path) -> None:
    trace = Trace.of(folder)
    rows = {name: table.num_rows for name, table in trace.tables.items()}
    assert rows == {"steps": 3, "messages": 8, "loop": 5, "processes": 1, "requests": 1, "counters": 23}
    assert {name: tuple(table.column_names) for name, table in trace.tables.items()} == {name: tuple(COLUMNS[name]) for name in COLUMNS}
    first = trace.tables["messages"].to_pylist()[0]
    assert first == {
        **{"run": "run", "writer": ENGINE, "edge": "input", "direction": "received"},
        **{"stamp_ns": at(1.9), "seq": 0, "frames": 2, "bytes": 100, "duration_ns": 0},
    }
    assert trace.tables["processes"].to_pylist()[0]["role"] == "engine"
    assert (trace.start_ns, trace.end_ns, trace.seconds) == (T0, at(58.5), pytest.approx(0.0585))


def test_front_and_engine_meet_in_one_row_a_request(folder: Path) -> None:
    (row,) = Trace.of(folder).tables["requests"].to_pylist()
    assert (row["writer"], row["engine"], row["id"], row["arrived_ns"], row["scheduled_ns"]) == (FRONT, ENGINE, "a", T0, at(5))
    assert [row[name] for name in ("queue_ms", "ttft_ms", "tpot_ms", "e2el_ms")] == pytest.approx([3, 18.5, 20, 58.5])
    assert row["itl_ms"] == pytest.approx([11, 29])


def test_requests_that_one_side_does_not_know(folder: Path) -> None:
    write_requests(folder, FRONT, [{"id": "refused", "arrived_ns": at(1), "first_ns": 0, "last_ns": None, "finish": "error"}])
    write_requests(folder, ENGINE, [{"id": "running", "added_ns": at(2), "scheduled_ns": at(3)}])
    refused, running = Trace.of(folder).tables["requests"].to_pylist()
    assert (refused["id"], refused["engine"], refused["queue_ms"], refused["ttft_ms"], refused["first_ns"]) == ("refused", *[None] * 4)
    assert (running["id"], running["writer"], running["queue_ms"], running["finish"]) == ("running", None, 1.0, None)


def test_a_request_that_left_before_its_first_token_is_a_row_like_others(folder: Path) -> None:
    gone = {"id": "b", "arrived_ns": at(1), "last_ns": at(3), "prompt_tokens": 4, "finish": "left", "token_ns": [], "token_counts": []}
    write_requests(folder, "front-14", [gone])
    trace = Trace.of(folder)
    assert trace.throughput(0.01)["output_tokens_per_s"].sum() > 0
    assert trace.throughput(0.01)["finished_per_s"].sum() > 100
    row = trace.latency().set_index("id").loc["b"]
    assert row["e2el_ms"] == 2 and math.isnan(row["itl_max_ms"])
    with pytest.raises(TraceError, match=r"has no tokens at the front.*left"):
        trace.way("b")


def test_one_token_has_no_tpot(folder: Path) -> None:
    stamps = {"first_ns": at(4), "last_ns": at(4), "token_ns": [at(4)], "token_counts": [1]}
    write_requests(folder, FRONT, [{"id": "b", "arrived_ns": at(1), "output_tokens": 1, "finish": "stop", **stamps}])
    (row,) = (row for row in Trace.of(folder).tables["requests"].to_pylist() if row["id"] == "b")
    assert (row["ttft_ms"], row["tpot_ms"], row["itl_ms"]) == (3.0, None, [])


@settings(deadline=None)
@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 1000), st.booleans(), st.booleans()), max_size=12))
def test_joining_loses_and_invents_no_row(requests: list[tuple[str, int, bool, bool]]) -> None:
    fronts = [("front-1", FrontRow(id, stamp)) for id, stamp, front, _ in requests if front]
    engines = [("engine-2", EngineRow(id, stamp)) for id, stamp, _, engine in requests if engine]
    joined = list(join_rows([*fronts, *engines]))
    sides = (("writer", "arrived_ns", fronts), ("engine", "added_ns", engines))
    for who, stamp, rows in sides:
        found = sorted((row["id"], row[stamp]) for row in joined if row.get(who))
        assert found == sorted((row.id, row.arrived_ns if isinstance(row, FrontRow) else row.added_ns) for _, row in rows)
    blank = dict.fromkeys(COLUMNS["requests"])
    assert [{**blank, **row} for row in rejoin({**blank, **row} for row in joined)] == [{**blank, **row} for row in joined]


def test_an_id_that_comes_again_is_matched_by_time() -> None:
    """Refused, then served, then served again, and now running: the engine never saw the first, the front has not seen the last end."""
    fronts = [("front-1", FrontRow("a", stamp, last_ns=last)) for stamp, last in ((30, 35), (10, 19), (5, None))]
    engines = [("engine-2", EngineRow("a", stamp)) for stamp in (11, 31, 41)]
    found = [(row.get("arrived_ns"), row.get("added_ns")) for row in join_rows([*fronts, *engines])]
    assert found == [(5, None), (10, 11), (30, 31), (None, 41)]


def test_pandas_has_seconds_and_exact_stamps(folder: Path) -> None:
    trace = Trace.of(folder)
    steps = trace.to_pandas("steps")
    assert steps["seconds"].tolist() == pytest.approx([0.004, 0.015, 0.026])
    assert steps["stamp_ns"].tolist() == [at(4), at(15), at(26)]
    requests = trace.to_pandas("requests")
    assert requests["arrived_ns"].tolist() == [T0], "a stamp above 2**53 lost its last bit in a float"
    assert requests[["arrived_s", "added_s", "scheduled_s", "first_s", "last_s"]].iloc[0].tolist() == pytest.approx(
        [0, 0.002, 0.005, 0.0185, 0.0585]
    )
    with pytest.raises(TraceError, match="no table 'step': there are steps, messages"):
        trace.to_pandas("step")


@pytest.mark.parametrize("table", COLUMNS)
def test_every_table_of_an_empty_run_is_a_frame(tmp_path: Path, table: str) -> None:
    write_counters(tmp_path, FRONT, {"loop.ticks": 0})
    trace = Trace.of(tmp_path)
    assert isinstance(trace.to_pandas(table), pd.DataFrame)
    assert trace.seconds == 0


def test_a_live_recording_gives_what_is_written(folder: Path) -> None:
    page = CounterPage.create(folder / "front-77.counters")
    page.block("request.finished").write(2)
    log = EventLog(folder, "engine-77", STEP)
    log.append(*step(40))
    with (folder / f"{FRONT}.requests.jsonl").open("a") as file:
        file.write('{"id": "b", "arri')
    (folder / "front-78.counters").write_bytes(b"")
    (folder / "front-78.step.events").write_bytes(b'{"writer"')
    trace = Trace.of(folder)
    log.close()
    page.close()
    assert trace.tables["steps"].num_rows == 4
    assert {"run": "run", "writer": "front-77", "name": "request.finished", "value": 2} in trace.tables["counters"].to_pylist()
    notes = " ".join(trace.meta["notes"])
    assert "front-78.counters is not whole" in notes and "front-78.step.events is not whole" in notes
    assert f"last line of {FRONT}.requests.jsonl is not whole" in notes
    assert "front-78.counters is not whole" in repr(trace)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("x-1.step.events", b"\x89PNG" * HEADER_BYTES),
        ("x-1.step.events", b"{}".ljust(HEADER_BYTES)),
        (
            "x-1.step.events",
            json.dumps({"writer": "x-1", "kind": "dream", "label": "", "columns": ["stamp_ns"]}).encode().ljust(HEADER_BYTES),
        ),
        ("x-1.counters", b"\xff" * PAGE_BYTES),
        ("x-1.counters", b"\x7f" * PAGE_BYTES),
        ("front-1.requests.jsonl", b"[1, 2]\n"),
        ("front-1.requests.jsonl", b'{"id": "a"}\n'),
    ],
)
def test_a_foreign_file_is_named(folder: Path, name: str, content: bytes) -> None:
    (folder / name).write_bytes(content)
    with pytest.raises(TraceError, match=name):
        Trace.of(folder)
    assert (folder / name).read_bytes() == content
    (folder / name).unlink()
    assert Trace.of(folder).tables["steps"].num_rows == 3


def test_other_files_do_not_matter(folder: Path) -> None:
    before = Trace.of(folder)
    (folder / "flame.svg").write_text("<svg/>")
    assert_same(before, Trace.of(folder))


def test_saved_and_loaded_is_the_same(folder: Path, tmp_path: Path) -> None:
    write_meta(folder, config={"topology": "mq", "path": Path("x")}, seed=7)
    trace = Trace.of(folder)
    path = trace.save(tmp_path / "kept" / "first")
    assert path == tmp_path / "kept" / "first.mqtrace"
    assert_same(Trace.load(path), trace)
    assert_same(Trace.load(folder), trace)
    assert pd.read_parquet(path / "steps.parquet")["device_ns"].tolist() == [6 * MS] * 3
    assert [entry.name for entry in (tmp_path / "kept").iterdir()] == ["first.mqtrace"]


def test_meta_is_what_the_run_said_and_the_overhead(folder: Path) -> None:
    assert any("no meta.json" in note for note in Trace.of(folder).meta["notes"])
    write_meta(folder, seed=7, run="named")
    meta = Trace.of(folder).meta
    assert meta["runs"]["named"]["seed"] == 7 and meta["runs"]["named"]["versions"]["mqlab"]
    assert meta["probe_overhead"] == {"named": {ENGINE: pytest.approx(0.5 / 58.5)}}
    (folder / "meta.json").write_text('{"seed"')
    assert any("meta.json of run cannot be read" in note for note in Trace.of(folder).meta["notes"])


def test_save_replaces_nothing_unasked(folder: Path, tmp_path: Path) -> None:
    trace = Trace.of(folder)
    path = trace.save(tmp_path / "t")
    with pytest.raises(TraceError, match="exists: save under another name"):
        trace.save(path)
    write_events(folder, "engine-99", STEP, [step(50)])
    assert Trace.load(Trace.of(folder).save(path, overwrite=True)).tables["steps"].num_rows == 4
    other = tmp_path / "other.mqtrace"
    other.write_text("mine")
    with pytest.raises(TraceError, match="exists"):
        trace.save(other, overwrite=True)
    assert other.read_text() == "mine"
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["other.mqtrace", "run", "t.mqtrace"]


def test_a_save_that_fails_leaves_the_old_one(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trace = Trace.of(folder)
    path = trace.save(tmp_path / "t")

    def fail(*args: object, **kwargs: object) -> None:
        raise OSError("the disk is full")

    monkeypatch.setattr("pyarrow.parquet.write_table", fail)
    with pytest.raises(OSError, match="the disk is full"):
        trace.save(path, overwrite=True)
    assert_same(Trace.load(path), trace)
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["run", "t.mqtrace"]


@pytest.mark.parametrize(
    ("file", "content"), [("meta.json", b"{"), ("steps.parquet", b"PAR1"), ("loop.parquet", None), ("steps.parquet", b"")]
)
def test_a_damaged_trace_is_named(folder: Path, tmp_path: Path, file: str, content: bytes | None) -> None:
    path = Trace.of(folder).save(tmp_path / "t")
    (path / file).unlink()
    if content is not None:
        (path / file).write_bytes(content)
    with pytest.raises(TraceError, match=file):
        Trace.load(path)


def test_a_table_with_other_columns_is_refused(folder: Path, tmp_path: Path) -> None:
    path = Trace.of(folder).save(tmp_path / "t")
    shutil.copy(path / "loop.parquet", path / "steps.parquet")
    with pytest.raises(TraceError, match=r"steps\.parquet is no table"):
        Trace.load(path)


def test_a_newer_format_is_refused(folder: Path, tmp_path: Path) -> None:
    path = Trace.of(folder).save(tmp_path / "t")
    meta = json.loads((path / "meta.json").read_text())
    (path / "meta.json").write_text(json.dumps({**meta, "mqtrace": 99}))
    with pytest.raises(TraceError, match=r"format 99, .*upgrade mqlab"):
        Trace.load(path)


def test_what_is_no_trace_says_so(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="does not exist"):
        Trace.load(tmp_path / "nothing")
    (tmp_path / "file").write_text("x")
    with pytest.raises(TraceError, match="is a file"):
        Trace.load(tmp_path / "file")
    with pytest.raises(TraceError, match="holds no recording"):
        Trace.load(tmp_path)


def test_a_folder_of_recordings_names_them(folder: Path) -> None:
    with pytest.raises(TraceError, match=r"holds no recording: .* there; in it are run, which Trace.merge"):
        Trace.load(folder.parent)


def test_runs_merge_on_one_clock(tmp_path: Path) -> None:
    one, two = record(tmp_path / "one"), record(tmp_path / "two")
    for folder in (one, two):
        write_meta(folder, seed=folder.name)
    merged = Trace.merge([Trace.of(one), Trace.of(two)])
    assert list(merged.meta["runs"]) == ["one", "two"] and merged.meta["runs"]["two"]["seed"] == "two"
    assert merged.tables["steps"].num_rows == 6 and merged.tables["requests"].num_rows == 2
    edges = records(merged.edges())
    assert [(row["run"], row["edge"], row["lost"]) for row in edges] == [
        (run, edge, 0) for run in ("one", "two") for edge in ("input", "output")
    ]
    assert merged.start_ns == T0
    assert set(merged.meta["probe_overhead"]) == {"one", "two"}
    assert_same(merged, Trace.load(merged.save(tmp_path / "both")))


def test_processes_of_one_run_merge_from_folders_of_their_own(folder: Path, tmp_path: Path) -> None:
    whole = Trace.of(folder)
    parts = [tmp_path / name / "run" for name in ("a", "b")]
    for part in parts:
        part.mkdir(parents=True)
    for file in folder.iterdir():
        shutil.move(file, parts[file.name.startswith("engine")] / file.name)
    merged = Trace.merge(Trace.of(part) for part in parts)
    assert merged.tables["requests"].equals(whole.tables["requests"])
    pd.testing.assert_frame_equal(merged.edges(), whole.edges())


@pytest.mark.parametrize("key", ["host", "boot_id"])
def test_different_clocks_do_not_merge(tmp_path: Path, key: str) -> None:
    folders = [record(tmp_path / name) for name in ("one", "two")]
    for folder in folders:
        write_meta(folder, **{key: folder.name})
    with pytest.raises(TraceError, match=f"different {key} have different clocks"):
        Trace.merge([Trace.of(folder) for folder in folders])


def test_merge_refuses_doubles_and_nothing(folder: Path) -> None:
    with pytest.raises(TraceError, match="run run is in two of the traces"):
        Trace.merge([Trace.of(folder), Trace.of(folder)])
    with pytest.raises(TraceError, match="at least one"):
        Trace.merge([])


def test_a_trace_shows_what_it_holds(folder: Path) -> None:
    write_meta(folder)
    text = repr(Trace.of(folder))
    for line in (
        "duration     0.059 s",
        "requests     1 finished (1 length)",
        "tokens       5 prompt, 3 output",
        f"edge output  {ENGINE} → {FRONT}: messages 3, none lost",
        "p50 3.00 ms, p99 4.96 ms, max 5.00 ms; busy 40%",
        f"{ENGINE}: 0.50 ms, 0.85% of the time",
    ):
        assert line in text
    assert "note" not in text


def test_html_escapes_and_follows_the_theme(tmp_path: Path) -> None:
    html = Trace.of(record(tmp_path / "<b>run"))._repr_html_()
    assert "&lt;b&gt;run" in html and "<b>" not in html
    assert "var(--jp-content-font-color1" in html


def test_a_great_trace_is_read_quickly_enough_to_show(tmp_path: Path) -> None:
    """Sizes, not times: 100 000 messages come through whole and in order."""
    for writer, direction, late in ((ENGINE, "sent", 0), (FRONT, "received", 1000)):
        rows = ((T0 + 10_000 * seq + late, seq, 1, 64, 500) for seq in range(100_000))
        write_events(tmp_path, writer, MESSAGE, rows, f"output.{direction}")
        write_counters(tmp_path, writer, {f"socket.output.{direction}.messages": 100_000})
    (row,) = records(Trace.of(tmp_path).edges())
    assert (row["sent"], row["lost"], row["transit_p50_us"], row["transit_p99_us"]) == (100_000, 0, 1.5, 1.5)
    assert np.isclose(row["send_us"], 0)


def test_a_trace_can_be_read_where_nothing_may_be_written(folder: Path) -> None:
    for path in (*folder.iterdir(), folder):
        path.chmod(path.stat().st_mode & ~0o222)
    try:
        assert Trace.of(folder).tables["steps"].num_rows == 3
    finally:
        folder.chmod(0o755)
