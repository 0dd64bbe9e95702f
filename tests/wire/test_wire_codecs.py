"""Codecs: what goes in comes out, and nothing else does."""

from __future__ import annotations

import pickle
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqlab.errors import ConfigError
from mqlab.params import StructuredOutputs
from mqlab.types import Abort, Call, Dead, Delta, Failure, Model, ModelInfo, Pooling, Reply, Request, SamplingParams, Step
from mqlab.wire.codecs import CODECS, Codec, make_codec

ids = st.text(max_size=20)
numbers = st.integers(0, 2**62)
token = st.integers(0, 2**31 - 1)
tokens = st.lists(token, max_size=50)
plain: Any = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False) | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=10,
)
maybe_seed = st.none() | st.integers(-(2**63), 2**63 - 1)
params = st.builds(
    SamplingParams,
    n=st.integers(1, 9),
    temperature=st.floats(0, 2),
    top_p=st.floats(0.01, 1),
    top_k=st.integers(-1, 99),
    seed=maybe_seed,
    max_tokens=st.none() | st.integers(10, 99),
    min_tokens=st.integers(0, 10),
    stop=st.lists(st.text(min_size=1, max_size=9), max_size=3).map(tuple),
    stop_token_ids=st.lists(token, max_size=3).map(tuple),
    ignore_eos=st.booleans(),
    presence_penalty=st.floats(-2, 2),
    repetition_penalty=st.floats(0.1, 9),
    min_p=st.floats(0, 1),
    logprobs=st.none() | st.integers(-1, 9),
    prompt_logprobs=st.none() | st.integers(-1, 9),
    logit_bias=st.dictionaries(token, st.floats(-100, 100), max_size=3),
    allowed_token_ids=st.none() | st.lists(token, min_size=1, max_size=3).map(tuple),
    bad_word_ids=st.lists(st.lists(token, min_size=1, max_size=3).map(tuple), max_size=2).map(tuple),
    structured_outputs=st.none() | st.builds(StructuredOutputs, regex=st.text(max_size=9)),
)
poolings = st.none() | st.builds(Pooling, st.sampled_from(["mean", "last", "cls"]), st.booleans())
requests = st.builds(Request, ids, tokens, params, numbers, st.integers(-9, 9), ids, st.none() | numbers, poolings)
commands = st.one_of(
    requests,
    st.builds(Abort, st.lists(ids, max_size=5).map(tuple), numbers),
    st.builds(Call, numbers, ids, st.lists(plain, max_size=3).map(tuple), numbers),
)
failures = st.none() | st.builds(Failure, st.sampled_from(["invalid", "failed", "unavailable"]), ids)
finishes = st.sampled_from([None, "stop", "length", "abort", "error"])
deltas = st.builds(Delta, ids, tokens, finishes, st.none() | numbers, failures, st.none() | st.text(max_size=9))
infos = st.builds(
    ModelInfo,
    name=ids,
    path=ids,
    vocab_size=numbers,
    max_model_len=numbers,
    max_prompt_len=numbers,
    eos_token_ids=st.lists(numbers, max_size=3).map(tuple),
    pid=numbers,
    epoch=numbers,
    state=st.sampled_from(["ready", "unloaded", "asleep"]),
)
events = st.one_of(
    st.builds(Step, st.lists(deltas, max_size=9), numbers),
    st.builds(Reply, numbers, plain, st.none() | ids, numbers),
    st.builds(Dead, ids, ids),
    st.builds(Model, infos),
)


@pytest.fixture(params=CODECS, scope="module")
def codec(request: pytest.FixtureRequest) -> Codec:
    """Each codec."""
    return make_codec(request.param)


@given(message=commands)
def test_commands_come_out_as_they_went_in(codec: Codec, message: Any) -> None:
    assert codec.command(codec.encode(message)) == message
    assert codec.command(memoryview(codec.encode(message))) == message


@given(message=events)
def test_events_come_out_as_they_went_in(codec: Codec, message: Any) -> None:
    assert codec.event(codec.encode(message)) == message


@given(message=infos)
def test_infos_come_out_as_they_went_in(codec: Codec, message: Any) -> None:
    assert codec.info(codec.encode(message)) == message


@given(message=events)
def test_an_event_is_no_command_and_no_info(codec: Codec, message: Any) -> None:
    frame = codec.encode(message)
    for decode in (codec.command, codec.info):
        with pytest.raises((TypeError, msgspec.ValidationError)):
            decode(frame)


@given(message=commands)
def test_a_command_is_no_event(codec: Codec, message: Any) -> None:
    with pytest.raises((TypeError, msgspec.ValidationError)):
        codec.event(codec.encode(message))


class Bomb:
    """Unpickling this counts."""

    exploded = 0

    def __reduce__(self) -> Any:
        return (_explode, ())


def _explode() -> None:
    Bomb.exploded += 1


def test_the_default_codec_runs_no_code() -> None:
    frame = pickle.dumps(Bomb())
    codec = make_codec("msgpack")
    for decode in (codec.command, codec.event, codec.info):
        with pytest.raises(msgspec.MsgspecError):
            decode(frame)
    assert Bomb.exploded == 0


@given(frame=st.binary(max_size=200))
def test_noise_is_refused(frame: bytes) -> None:
    codec = make_codec("msgpack")
    for decode in (codec.command, codec.event, codec.info):
        with pytest.raises((msgspec.MsgspecError, UnicodeDecodeError)):
            decode(frame)


def test_a_number_out_of_range_is_not_a_request() -> None:
    codec = make_codec("msgpack")
    frame = codec.encode(Request("a", [1.5], SamplingParams()))  # type: ignore[list-item]
    with pytest.raises(msgspec.ValidationError):
        codec.command(frame)


def test_an_unknown_codec_is_refused_with_the_known() -> None:
    with pytest.raises(ConfigError, match="--codec='json' is unknown; choose one of msgpack, pickle"):
        make_codec("json")
