"""Steps in columns are the same steps, whatever they hold; what is held back comes, and in order."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqlab.logprobs import Logprobs
from mqlab.topologies.columns import TextColumns, TokenColumns, text_columns, token_columns
from mqlab.topologies.ring_scheduler import Pacer
from mqlab.types import Delta, Event, Failure, RequestStats, Step
from mqlab.wire.codecs import make_codec

LOGPROBS = st.builds(Logprobs, st.integers(1, 3), st.binary(), st.binary(), st.binary())
DELTAS = st.builds(
    Delta,
    st.text(),
    st.lists(st.integers(0, 2**31 - 1)),
    st.none() | st.sampled_from(["stop", "length", "abort", "error"]),
    st.none() | st.integers(0, 2**31 - 1) | st.text(),
    st.none() | st.builds(Failure, st.sampled_from(["invalid", "failed", "unavailable"]), st.text()),
    st.none() | st.text(),
    st.none() | LOGPROBS,
    st.none() | LOGPROBS,
    st.none() | st.binary(),
    st.none() | st.builds(RequestStats, *[st.floats(0, 1e6)] * 3, *[st.integers(0, 2**40)] * 3),
)
STEPS = st.builds(Step, st.lists(DELTAS, max_size=5), st.integers(0, 3))


@pytest.mark.parametrize("codec", ["msgpack", "pickle"])
@given(step=STEPS)
def test_a_step_goes_there_and_back(codec: str, step: Step) -> None:
    wire, wants = make_codec(codec), list(range(len(step.deltas)))
    tokens = wire.decoder(TokenColumns | Event)(wire.encode(token_columns(step, wants)))
    assert type(tokens) is TokenColumns and (tokens.step(), tokens.wants) == (step, wants)
    assert wire.decoder(TextColumns | Event)(wire.encode(text_columns(tokens.step()))).step() == step
    assert wire.decoder(TextColumns | Event)(wire.encode(step)) == step


def test_a_large_plain_step_is_smaller_in_columns() -> None:
    step = Step([Delta(f"request-{i}", [i], text=" word") for i in range(256)])
    assert len(msgspec.msgpack.encode(text_columns(step))) < len(msgspec.msgpack.encode(step))


@given(interval=st.integers(1, 5), gains=st.lists(st.tuples(st.sampled_from("ab"), st.integers(1, 7)), max_size=30))
def test_tokens_are_held_back_and_none_is_lost(interval: int, gains: list[tuple[str, int]]) -> None:
    pacer, numbers, sent = Pacer(interval), iter(range(1000)), {"a": list[int](), "b": list[int]()}
    gained = {"a": list[int](), "b": list[int]()}
    for id, count in gains:
        tokens = [next(numbers) for _ in range(count)]
        gained[id] += tokens
        for delta in pacer.pace(Step([Delta(id, tokens)])).deltas:
            sent[delta.id] += delta.tokens
            assert sent[delta.id] == gained[delta.id]
        assert len(gained[id]) - len(sent[id]) < interval
    for id in gained:
        (last,) = pacer.pace(Step([Delta(id, [], "abort")])).deltas
        assert sent[id] + last.tokens == gained[id] and last.finish == "abort"
