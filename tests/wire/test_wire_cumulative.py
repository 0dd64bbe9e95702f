"""Outputs that grow: what travels is everything so far, what arrives is what is new."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqlab.errors import ConfigError
from mqlab.types import Delta, Failure, Step
from mqlab.wire.codecs import CODECS, make_codec

ids = st.sampled_from(["a", "b", "c"])
pieces = st.lists(st.tuples(ids, st.lists(st.integers(0, 99), max_size=4)), max_size=20)


@given(name=st.sampled_from(sorted(CODECS)), pieces=pieces, client=st.integers(0, 2))
def test_a_stream_arrives_as_it_was_sent(name: str, pieces: list[tuple[str, list[int]]], client: int) -> None:
    sender, receiver = make_codec(name, "cumulative"), make_codec(name, "cumulative")
    for request, tokens in pieces:
        event: Any = receiver.event(sender.encode(Step([Delta(request, list(tokens))], client)))
        assert event == Step([Delta(request, tokens)], client)


def test_a_message_carries_all_tokens_so_far() -> None:
    sender, plain = make_codec("msgpack", "cumulative"), make_codec("msgpack")
    sender.encode(Step([Delta("a", [1, 2])]))
    event: Any = plain.event(sender.encode(Step([Delta("a", [3])])))
    assert event.deltas[0].tokens == [1, 2, 3]


def test_an_id_that_ended_begins_anew() -> None:
    sender, receiver = make_codec("msgpack", "cumulative"), make_codec("msgpack", "cumulative")
    for finish in ("stop", "length"):
        first: Any = receiver.event(sender.encode(Step([Delta("a", [1, 2])])))
        last: Any = receiver.event(sender.encode(Step([Delta("a", [3], finish=finish)])))
        assert (first.deltas[0].tokens, last.deltas[0].tokens) == ([1, 2], [3])


def test_clients_with_the_same_id_do_not_mix() -> None:
    sender, plain = make_codec("msgpack", "cumulative"), make_codec("msgpack")
    sender.encode(Step([Delta("a", [1])], 0))
    event: Any = plain.event(sender.encode(Step([Delta("a", [2])], 1)))
    assert event.deltas[0].tokens == [2]


def test_what_comes_with_the_tokens_is_kept() -> None:
    delta = Delta("a", [], finish="error", error=Failure("failed", "why"))
    sender, receiver = make_codec("pickle", "cumulative"), make_codec("pickle", "cumulative")
    assert receiver.event(sender.encode(Step([delta]))) == Step([delta])


def test_an_unknown_output_is_refused_with_the_known() -> None:
    with pytest.raises(ConfigError, match=r"--output='all' is unknown; choose one of delta, cumulative"):
        make_codec("msgpack", "all")
