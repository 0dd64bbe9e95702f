"""Stacks read, summed, written and drawn."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqlab.record.flame import MAX_DEPTH, WIDTH, Stacks, draw, lay_out

SVG = "{http://www.w3.org/2000/svg}"
TEXT = "a (x.py);b (mqlab/engine/core.py) 3\na (x.py);c <lambda> (y.py) 1\na (x.py) 2\na (x.py);b (mqlab/engine/core.py);a (x.py) 4\n"

frames = st.text(st.characters(codec="utf-8", categories=("L", "N", "P"), exclude_characters=";"), min_size=1, max_size=12)
stacks = st.dictionaries(st.lists(frames, min_size=1, max_size=6).map(tuple), st.integers(1, 1000), min_size=1, max_size=12).map(Stacks)


def test_parse_sums_equal_lines() -> None:
    assert Stacks.parse("a;b 1\na;b 2\nc d (e.py) 4\n").counts == {("a", "b"): 3, ("c d (e.py)",): 4}


@pytest.mark.parametrize("text", ["a;b", "a;b x", " 3", "a;b 1\n\nc 2"])
def test_parse_names_the_wrong_line(text: str) -> None:
    with pytest.raises(ValueError, match=r"line \d of the stacks"):
        Stacks.parse(text)


def test_shares_count_recursion_once() -> None:
    first, *rest = Stacks.parse(TEXT).top()
    assert (first.frame, first.own, first.total) == ("a (x.py)", 0.6, 1.0)
    assert [(share.frame, share.own, share.total) for share in rest] == [
        ("b (mqlab/engine/core.py)", 0.3, 0.7),
        ("c <lambda> (y.py)", 0.1, 0.1),
    ]
    assert len(Stacks.parse(TEXT).top(1)) == 1


def test_merge_keeps_parts_apart() -> None:
    merged = Stacks.merge({"engine": Stacks({("a",): 2}), "front": Stacks({("a",): 1})})
    assert merged.counts == {("engine", "a"): 2, ("front", "a"): 1}


@given(stacks)
def test_save_and_load_are_inverse(tmp_path_factory: pytest.TempPathFactory, one: Stacks) -> None:
    path = tmp_path_factory.getbasetemp() / "stacks.txt"
    one.save(path)
    assert Stacks.load(path).counts == one.counts


@given(stacks)
def test_boxes_hold_every_sample_and_stay_within_their_parents(one: Stacks) -> None:
    boxes = list(lay_out(one))
    assert sum(box.count for box in boxes if box.depth == 0) == one.total
    for box in boxes:
        assert 0 <= box.start <= box.start + box.count <= one.total
        if box.depth:
            above = [outer for outer in boxes if outer.depth == box.depth - 1 and outer.start <= box.start < outer.start + outer.count]
            assert len(above) == 1 and box.start + box.count <= above[0].start + above[0].count


@given(stacks)
def test_pictures_are_well_formed_and_within_their_frame(one: Stacks) -> None:
    root = ElementTree.fromstring(draw(one, "<title> & more"))
    assert root.findtext(f"{SVG}title") == "<title> & more"
    for rect in root.iter(f"{SVG}rect"):
        x, width = float(rect.get("x", 0)), float(rect.get("width", 0))
        assert x >= 0 and x + width <= WIDTH + 1


def test_picture_names_frames_and_shares() -> None:
    svg = draw(Stacks.parse(TEXT), "t")
    assert "<title>a (x.py): 10 samples, 100.0%</title>" in svg
    assert "c &lt;lambda&gt; (y.py): 1 samples, 10.0%" in svg
    assert not re.search(r"<script|<style|\bid=|onload", svg)


def test_pictures_stay_small() -> None:
    wide = Stacks({("root", f"leaf {number}" * 10): 1 for number in range(100_000)})
    deep = Stacks({tuple(f"frame {number}" for number in range(5000)): 3})
    assert len(draw(wide, "wide")) < 2000
    assert max(box.depth for box in lay_out(deep)) == MAX_DEPTH - 1


def test_nothing_gives_an_empty_picture(tmp_path: Path) -> None:
    assert Stacks({}).total == 0 and Stacks({}).top() == []
    assert ElementTree.fromstring(draw(Stacks({}), "empty")).tag == f"{SVG}svg"
