"""Stop strings in text that arrives in pieces, against a search of the whole text."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqlab.text.stops import StopFinder


def cut_whole(text: str, stops: list[str], include: bool) -> tuple[str, str | None]:
    """What is left of a whole text: up to the stop that begins first, the shortest of those that begin there."""
    hits = [(text.index(stop), len(stop), stop) for stop in stops if stop in text]
    if not hits:
        return text, None
    start, length, stop = min(hits)
    return text[: start + length if include else start], stop


def stream(pieces: list[str], stops: list[str], include: bool = False) -> tuple[list[str], str | None]:
    finder = StopFinder(stops, include)
    shown = [finder.push(piece, final=i == len(pieces) - 1) for i, piece in enumerate(pieces)]
    return shown, finder.found


words = st.text(alphabet="ab ", max_size=6)


@given(pieces=st.lists(words, min_size=1, max_size=12), stops=st.lists(words.filter(bool), min_size=1, max_size=3), include=st.booleans())
def test_streamed_equals_whole(pieces: list[str], stops: list[str], include: bool) -> None:
    shown, found = stream(pieces, stops, include)
    assert ("".join(shown), found) == cut_whole("".join(pieces), stops, include)


@given(pieces=st.lists(words, min_size=1, max_size=12), stops=st.lists(words.filter(bool), min_size=1, max_size=3))
def test_no_more_is_held_back_than_may_begin_a_stop(pieces: list[str], stops: list[str]) -> None:
    finder = StopFinder(stops)
    seen = shown = ""
    for piece in pieces:
        seen += piece
        shown += finder.push(piece)
        if finder.found is None:
            held = seen[len(shown) :]
            assert held == "" or any(stop.startswith(held) for stop in stops) or any(stop in held for stop in stops)


@pytest.mark.parametrize(
    ("pieces", "stops", "shown", "found"),
    [
        (["one ST", "OP two"], ["STOP"], ["one ", ""], "STOP"),
        (["one STOP two"], ["STOP"], ["one "], "STOP"),
        (["one", " STOP", " two"], [" STOP"], ["one", "", ""], " STOP"),
        (["a", "b", "c", "d"], ["abcd", "bc"], ["", "", "", ""], "abcd"),
        (["a", "b", "c", "x"], ["abcd", "bc"], ["", "", "", "a"], "bc"),
        (["ST", "ay"], ["STOP"], ["", "STay"], None),
        (["aaa", "b"], ["aab"], ["a", ""], "aab"),
        (["the end ST"], ["STOP"], ["the end ST"], None),
    ],
)
def test_cases(pieces: list[str], stops: list[str], shown: list[str], found: str | None) -> None:
    assert stream(pieces, stops) == (shown, found)


def test_nothing_follows_a_stop() -> None:
    finder = StopFinder(["x"])
    assert finder.push("axb") == "a"
    assert finder.push("more", final=True) == ""
    assert finder.found == "x"
