"""Captures saved, opened again, compared and shown; files of other programs."""

from __future__ import annotations

import html
import json
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqlab.errors import ProfileError
from mqlab.record import speedscope
from mqlab.record.capture import Capture, How, parse_raw
from mqlab.record.flame import Stacks
from mqlab.record.part import Part

ENGINE = "MainThread;step (mqlab/engine/core.py) 60\nMainThread;step (mqlab/engine/core.py);encode (mqlab/wire/codecs.py) 20\n"
FRONT = "loop;Runner.run (asyncio/runners.py) 15\nloop;Runner.run (asyncio/runners.py);send (zmq/a.py) 5\n"

# The rules of https://www.speedscope.app/file-format-schema.json for sampled profiles, stated anew.
INDEX = {"type": "integer", "minimum": 0}
SAMPLED = {
    "type": "object",
    "required": ["type", "name", "unit", "startValue", "endValue", "samples", "weights"],
    "properties": {
        "type": {"const": "sampled"},
        "name": {"type": "string"},
        "unit": {"enum": ["bytes", "microseconds", "milliseconds", "nanoseconds", "none", "seconds"]},
        "startValue": {"type": "number"},
        "endValue": {"type": "number"},
        "samples": {"type": "array", "items": {"type": "array", "items": INDEX}},
        "weights": {"type": "array", "items": {"type": "number"}},
    },
}
FRAME = {"type": "object", "required": ["name"], "properties": {"name": {"type": "string"}, "file": {"type": "string"}}}
SCHEMA = {
    "type": "object",
    "required": ["$schema", "profiles", "shared"],
    "properties": {
        "$schema": {"const": "https://www.speedscope.app/file-format-schema.json"},
        "profiles": {"type": "array", "items": SAMPLED},
        "shared": {"type": "object", "required": ["frames"], "properties": {"frames": {"type": "array", "items": FRAME}}},
        "name": {"type": "string"},
        "exporter": {"type": "string"},
        "activeProfileIndex": {"type": "number"},
    },
}


def capture(engine: str = ENGINE, front: str = FRONT, **how: Any) -> Capture:
    parts = (
        Part("engine", Stacks.parse(engine), 100, 11, 1.0, {"MainThread": 0.8}, 0.1, 2, "3.11", ("2 samples failed and are left out",)),
        Part("front", Stacks.parse(front), 100, 12, 1.0, {"loop": 0.2}),
    )
    return Capture(parts, How(**{"seconds": 1, **how}), Path("unsaved"), ("process 13 is not running",), "2026-01-01T00:00:00+00:00")


def test_a_saved_capture_opens_as_it_was(tmp_path: Path) -> None:
    saved = capture(rate=1000, native=True).save(tmp_path / "new" / "one")
    assert Capture.load(tmp_path / "new" / "one") == saved
    assert saved.parts == capture().parts and saved.svg.read_text() == saved.draw()
    assert saved.problems == ("process 13 is not running", "engine: 2 samples failed and are left out")


def test_the_speedscope_file_is_valid_and_opens_as_a_capture(tmp_path: Path) -> None:
    saved = capture().save(tmp_path)
    document = json.loads(saved.speedscope.read_text())
    jsonschema.validate(document, SCHEMA)
    frames = len(document["shared"]["frames"])
    for profile in document["profiles"]:
        assert len(profile["samples"]) == len(profile["weights"])
        assert profile["endValue"] == pytest.approx(sum(profile["weights"]))
        assert all(index < frames for stack in profile["samples"] for index in stack)
    assert [profile["name"] for profile in document["profiles"]] == ["engine 11 MainThread", "front 12 loop"]
    opened = Capture.load(saved.speedscope)
    assert {share.frame: share.own for share in opened.top()} == {share.frame: share.own for share in saved.top()}


@pytest.mark.parametrize("name", ["engine-11.stacks.txt", "front-12.stacks.txt"])
def test_the_stacks_of_a_process_open_alone(name: str, tmp_path: Path) -> None:
    saved = capture().save(tmp_path)
    role = name.partition("-")[0]
    assert Capture.load(tmp_path / name).parts[0].stacks == saved.part(role).stacks


def test_a_raw_file_of_the_sampler_opens(tmp_path: Path) -> None:
    (tmp_path / "x.raw").write_text("thread (2925): MainThread;a (b.py) 3\nthread (0x7f0);c (d.py) 2\nthread (2926): we;ird;c (d.py) 1\n")
    opened = Capture.load(tmp_path / "x.raw")
    assert set(opened.stacks.counts) == {("x", "MainThread", "a (b.py)"), ("x", "thread", "c (d.py)"), ("x", "we", "ird", "c (d.py)")}


def test_folded_stacks_of_anybody_open(tmp_path: Path) -> None:
    (tmp_path / "perf.folded").write_text("java;main;work 3\njava;main 1\n")
    opened = Capture.load(tmp_path / "perf.folded")
    assert opened.stacks.total == 4 and opened.top(1)[0].frame == "work"
    assert opened.categories().share("perf", "other") == 1.0


EVENTS = [("O", 0, 0), ("O", 1, 1), ("C", 1, 3), ("C", 0, 4)]


@pytest.mark.parametrize(
    ("profile", "counts"),
    [
        ({"type": "sampled", "unit": "seconds", "samples": [[0], [0, 1], [0]], "weights": [0.01, 0.02, 0.01]}, (2, 2)),
        ({"type": "sampled", "unit": "none", "samples": [[0], [0, 1], []], "weights": [3, 1, 5]}, (3, 1)),
        ({"type": "sampled", "unit": "milliseconds", "samples": [[0], [0, 1]], "weights": [1.2345, 3.7891]}, (1234, 3789)),
        (
            {
                "type": "evented",
                "unit": "nanoseconds",
                "endValue": 4,
                "events": [{"type": kind, "frame": frame, "at": at} for kind, frame, at in EVENTS],
            },
            (2, 2),
        ),
    ],
)
def test_speedscope_files_of_anybody_open(profile: Mapping[str, Any], counts: tuple[int, int], tmp_path: Path) -> None:
    path = tmp_path / "theirs.json"
    frames = [{"name": "a;b", "file": "x.js", "line": 3}, {"name": "c"}]
    path.write_text(json.dumps({"shared": {"frames": frames}, "profiles": [{"name": "p", "startValue": 0, "endValue": 0, **profile}]}))
    stacks = Capture.load(path).parts[0].stacks.counts
    assert (stacks["p", "a:b (x.js)"], stacks["p", "a:b (x.js)", "c"]) == counts


frames = st.text(st.characters(categories=("L", "N")), min_size=1, max_size=5)
stacks = st.dictionaries(st.lists(frames, min_size=1, max_size=5).map(tuple), st.integers(1, 50), min_size=1, max_size=8).map(Stacks)


@given(st.dictionaries(frames, stacks, min_size=1, max_size=3), st.sampled_from([10, 100, 1000]))
def test_speedscope_keeps_the_shares_of_all_stacks(
    tmp_path_factory: pytest.TempPathFactory, profiles: dict[str, Stacks], rate: int
) -> None:
    path = tmp_path_factory.getbasetemp() / "x.json"
    speedscope.write(path, profiles, rate=rate, name="x")
    opened, ticks = speedscope.read(path)
    for name, one in profiles.items():
        assert {stack: count / ticks for stack, count in opened[name].counts.items()} == pytest.approx(
            {stack: count / rate for stack, count in one.counts.items()}, abs=1e-6
        )


def speedscope_of(weight: float) -> dict[str, Any]:
    """A file with one sample of that weight."""
    profile = {"name": "p", "type": "sampled", "unit": "seconds", "samples": [[0]], "weights": [weight]}
    return {"shared": {"frames": [{"name": "f"}]}, "profiles": [profile]}


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("gone", None, "no capture at .*gone"),
        ("folder/", None, "no capture at .*meta.json is missing"),
        ("x.json", "{}", "no speedscope file: KeyError: 'shared'"),
        ("x.json", "[1]", "no speedscope file"),
        ("x.json", "{", "is no capture"),
        ("x.txt", "what is this", "is no capture: line 1"),
        ("x.txt", "a;b ²", "is no capture: line 1"),
        ("deep.json", "[" * 100_000, "is no capture"),
        ("tiny.json", json.dumps(speedscope_of(5e-324)), "no speedscope file: OverflowError"),
        ("infinite.json", json.dumps(speedscope_of(math.inf)), "no speedscope file: ValueError"),
        ("folder/meta.json", "{}", "its meta.json is not as it was written: KeyError: 'parts'"),
        ("folder/meta.json", '{"parts": "x"}', "its meta.json is not as it was written: AttributeError"),
    ],
)
def test_what_is_no_capture_is_said(name: str, text: str | None, says: str, tmp_path: Path) -> None:
    path = tmp_path / name
    if "folder" in name:
        (tmp_path / "folder").mkdir()
    if text is not None:
        path.write_text(text)
    with pytest.raises(ProfileError, match=says):
        Capture.load(path.parent if path.name == "meta.json" else path)


def test_a_process_that_is_not_in_it_is_said() -> None:
    with pytest.raises(ProfileError, match="'back' is not in this capture; it has engine, front"):
        capture().part("back")


def test_a_capture_shows_itself(tmp_path: Path) -> None:
    saved = capture().save(tmp_path / "<b>")
    root = ElementTree.fromstring(saved._repr_html_())
    text = "".join(root.itertext())
    for expected in (
        "process 13 is not running",
        "scheduler 60%",
        "idle",
        str(saved.speedscope),
        "encode (mqlab/wire/codecs.py)",
        "pid 11",
    ):
        assert expected in text
    assert "100 samples in 1.0 s of running threads, 2 samples failed" in repr(saved)
    assert "process 13 is not running" in str(saved) and "step (mqlab/engine/core.py)" in str(saved)


def test_the_flame_graph_is_apart_from_the_page(tmp_path: Path) -> None:
    page = capture().save(tmp_path)._repr_html_()
    (frame,) = ElementTree.fromstring(page).iter("iframe")
    assert frame.get("sandbox") == "" and "step (mqlab/engine/core.py)" in frame.get("srcdoc", "")
    outside = re.sub(r"<iframe.*?</iframe>", "", page)
    assert not re.search(r"<script|<style|\bid=|\bon\w+=|https?://(?!www\.w3\.org)", outside)
    assert "<script" not in html.unescape(page)


def test_a_difference_names_what_changed() -> None:
    slower = ENGINE.replace(" 20", " 120")
    diff = capture().diff(capture(engine=slower))
    first, second, *_ = diff.top()
    assert first.frame.startswith("encode") and first.own == pytest.approx(0.6 - 0.2)
    assert second.frame.startswith("step") and second.own == pytest.approx(0.3 - 0.6) and second.total == pytest.approx(0.9 - 0.8)
    assert "+40.0 pp encode (mqlab/wire/codecs.py)" in str(diff) and "encode" in repr(diff)
    changes = {(change.role, change.category): change.after - change.before for change in diff.categories()}
    assert changes["engine", "codec"] > 0 > changes["engine", "scheduler"]
    assert next(iter(diff.to_pandas()["frame"])) == first.frame


def test_a_difference_of_equals_is_nothing() -> None:
    diff = capture().diff(capture())
    assert all(change.own == change.total == 0 for change in diff.changes)
    assert "pp" not in re.sub(r"<title>.*?</title>", "", diff.draw())


def test_what_is_in_one_only_is_in_the_difference() -> None:
    diff = capture().diff(capture(engine="MainThread;new (x.py) 80\n"))
    gone = {change.frame: change for change in diff.changes}
    assert gone["encode (mqlab/wire/codecs.py)"].own_after == 0 and gone["new (x.py)"].own_before == 0


def test_the_differential_flame_graph_has_two_colours_and_says_the_points() -> None:
    svg = capture().diff(capture(engine=ENGINE.replace(" 20", " 120"))).draw()
    assert "<title>encode (mqlab/wire/codecs.py): 60.0%, +40.0 pp</title>" in svg and "+40.0 pp  encode" in svg
    fills = dict(re.findall(r"<title>(\w+)[^<]*</title><rect [^>]*fill=\"(#\w+)\"", svg))
    assert fills["encode"] == "#e8783c" and fills["front"] == "#5aa0e1"


def test_a_difference_shows_itself_and_its_doubts() -> None:
    page = capture().diff(capture(idle=True))._repr_html_()
    text = "".join(ElementTree.fromstring(page).itertext())
    assert "differ in idle, native or gil" in text and "before: process 13 is not running" in text and "engine: codec" in text


def test_raw_text_without_a_count_is_refused() -> None:
    with pytest.raises(ValueError, match="line 1"):
        parse_raw("thread (1): x;y\n")
