"""Logprobs are packed, cut, joined and sent without a change to any number."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqlab.logprobs import Logprobs, join
from mqlab.types import Delta, Step
from mqlab.wire.codecs import make_codec


def packed(count: int, width: int, seed: int = 0) -> Logprobs:
    rng = np.random.default_rng(seed)
    tokens = rng.integers(0, 2**31 - 1, (count, width), np.int32)
    values = -rng.random((count, width), np.float32)
    return Logprobs.pack(tokens, values, rng.integers(1, 100, count).astype(np.int32))


def test_rows_are_what_was_packed() -> None:
    tokens = np.array([[5, 5, 9], [7, 1, 7]], np.int32)
    values = np.array([[-0.5, -0.5, -1.25], [-2.0, -0.25, -2.0]], np.float32)
    logprobs = Logprobs.pack(tokens, values, np.array([1, 2], np.int32))
    assert logprobs.count == 2
    assert logprobs.rows() == [[(5, -0.5), (5, -0.5), (9, -1.25)], [(7, -2.0), (1, -0.25), (7, -2.0)]]
    assert logprobs.rank_list() == [1, 2]


@given(st.integers(1, 6), st.integers(1, 5), st.data())
def test_any_cut_joins_again(count: int, width: int, data: st.DataObject) -> None:
    whole = packed(count, width)
    at = data.draw(st.integers(0, count))
    head = whole.cut(at)
    assert head.rows() == whole.rows()[:at] and head.rank_list() == whole.rank_list()[:at]
    assert Logprobs.concat(whole.each()) == whole
    parts = whole.each()
    assert [one.rows()[0] for one in parts] == whole.rows()
    assert join(Logprobs.concat(parts[:at]) if at else None, Logprobs.concat(parts[at:]) if at < count else None) == whole


@pytest.mark.parametrize("codec", ["msgpack", "pickle"])
@pytest.mark.parametrize("output", ["delta", "cumulative"])
def test_they_survive_every_codec(codec: str, output: str) -> None:
    delta = Delta("a", [1, 2], logprobs=packed(2, 3), prompt_logprobs=packed(4, 2, seed=1), embedding=b"\0\1\2\3")
    sender, receiver = make_codec(codec, output), make_codec(codec, output)
    event = receiver.event(sender.encode(Step([delta])))
    assert isinstance(event, Step)
    assert event.deltas == [delta]
