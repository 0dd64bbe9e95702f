"""What an engine takes in: each limit at its edge, each refusal with field, value, limit; and nothing a request carries ends the engine."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import numpy as np
import pytest
from checksum import EOS, VOCAB, Inbox, build_core, build_runner, drain, solo
from hypothesis import given, settings
from hypothesis import strategies as st

from mqlab.engine.admission import MAX_PHRASES, Admission, check_fields
from mqlab.engine.core import step
from mqlab.engine.masks import bits
from mqlab.engine.sequence import Sequence
from mqlab.errors import InvalidRequest, RequestError
from mqlab.params import StructuredOutputs
from mqlab.types import ModelInfo, Pooling, Request, SamplingParams

INFO = ModelInfo(
    name="tiny",
    vocab_size=70,
    max_model_len=32,
    max_prompt_len=31,
    eos_token_ids=(2, 69),
    num_blocks=16,
    block_size=4,
    hidden_size=8,
)
MAX_LOGPROBS = 5


def spoiled(**fields: Any) -> SamplingParams:
    """Parameters that no caller can make, as pickle or a core in the caller's process might bring them."""
    params = SamplingParams()
    for name, value in fields.items():
        msgspec.structs.force_setattr(params, name, value)
    return params


def admit(
    params: SamplingParams | None = None, prompt: Any = (1,), info: ModelInfo = INFO, limit: int = MAX_LOGPROBS, **fields: Any
) -> Sequence:
    request = Request("r", prompt, params or SamplingParams(), **fields)
    check_fields(request)
    return Admission(info, limit).admit(request, 7)


def ids(mask: np.ndarray) -> list[int]:
    assert mask.dtype == np.uint32
    return np.unpackbits(mask.view(np.uint8), bitorder="little").nonzero()[0].tolist()


@pytest.mark.parametrize("field", ["stop_token_ids", "allowed_token_ids", "logit_bias", "bad_word_ids"])
def test_ids_within_the_vocabulary(field: str) -> None:
    def of(token: int) -> Any:
        return {"logit_bias": {token: 1.0}, "bad_word_ids": ((3, token),)}.get(field, (3, token))

    assert getattr(admit(SamplingParams(**{field: of(69)})).params, field) == of(69)
    with pytest.raises(InvalidRequest, match=f"{field} holds token id 70; the vocabulary of 'tiny' has ids 0 to 69"):
        admit(SamplingParams(**{field: of(70)}))
    with pytest.raises(InvalidRequest, match=field):
        admit(spoiled(**{field: of(-1)}))


@pytest.mark.parametrize("field", ["logprobs", "prompt_logprobs"])
def test_logprobs_up_to_the_limit(field: str) -> None:
    for count in (None, 0, MAX_LOGPROBS):
        assert getattr(admit(SamplingParams(**{field: count})).params, field) == count
    for count in (MAX_LOGPROBS + 1, -1):
        with pytest.raises(InvalidRequest, match=rf"{field}={count} asks for too many; at most 5 are given: .*--max-logprobs"):
            admit(SamplingParams(**{field: count}))


@pytest.mark.parametrize("field", ["logprobs", "prompt_logprobs"])
def test_without_a_limit_logprobs_up_to_the_vocabulary(field: str) -> None:
    for count in (-1, 70):
        assert getattr(admit(SamplingParams(**{field: count}), limit=-1).params, field) == count
    with pytest.raises(InvalidRequest, match=f"{field}=71 asks for too many; at most 70"):
        admit(SamplingParams(**{field: 71}), limit=-1)


def test_a_mask_is_what_is_allowed_without_the_bad_words_of_one_token() -> None:
    params = SamplingParams(allowed_token_ids=(0, 5, 31, 32, 69), bad_word_ids=((5,), (6,), (31, 32)))
    assert ids(admit(params).mask) == [0, 31, 32, 69]
    assert ids(admit(SamplingParams(bad_word_ids=((0,), (64,)))).mask) == [i for i in range(70) if i not in (0, 64)]
    assert admit(SamplingParams(bad_word_ids=((0, 1),))).mask is None


def test_equal_requests_share_one_mask() -> None:
    params = [SamplingParams(allowed_token_ids=tuple(range(40))) for _ in range(2)]
    assert admit(params[0]).mask is admit(params[1]).mask


@given(st.integers(1, 200), st.data())
def test_bits_are_the_ids(vocab: int, data: st.DataObject) -> None:
    chosen = data.draw(st.sets(st.integers(0, vocab - 1)))
    words = bits(chosen, vocab)
    assert len(words) == math.ceil(vocab / 32) and ids(words) == sorted(chosen)
    assert ids(bits(slice(vocab), vocab)) == list(range(vocab))


@pytest.mark.parametrize(
    ("params", "message"),
    [
        (SamplingParams(allowed_token_ids=(5, 6), bad_word_ids=((5,), (6,))), "leave no token to choose from"),
        (SamplingParams(allowed_token_ids=(2, 9), stop_token_ids=(9,), min_tokens=1), "min_tokens=1 leaves no token to choose from"),
        (SamplingParams(stop_token_ids=tuple(range(70)), min_tokens=1), "min_tokens=1 with 70 end and stop ids leaves no token"),
        (SamplingParams(bad_word_ids=((1, 2),) * (MAX_PHRASES + 1)), "come to 1025 sequences of several tokens; at most 1024"),
        (SamplingParams(structured_outputs=StructuredOutputs(json_object=True)), "'tiny' masks no tokens, so it follows no grammar"),
    ],
)
def test_what_can_never_be_answered_is_refused(params: SamplingParams, message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        admit(params)


@pytest.mark.parametrize("how", [{"params": SamplingParams(max_tokens=0)}, {"pooling": Pooling("last")}])
def test_a_prompt_without_an_answer_may_fill_the_whole_context(how: dict[str, Any]) -> None:
    sequence = admit(prompt=[1] * 32, **how)
    assert sequence.max_new == 0 and not sequence.draws
    with pytest.raises(InvalidRequest, match="prompt has 33 tokens; at most 32 fit: the context holds 32: raise --max-model-len"):
        admit(prompt=[1] * 33, **how)
    small = msgspec.structs.replace(INFO, num_blocks=2, max_prompt_len=7)
    assert admit(prompt=[1] * 8, info=small, **how).max_new == 0
    with pytest.raises(InvalidRequest, match="prompt has 9 tokens; at most 8 fit: the KV pool holds 8"):
        admit(prompt=[1] * 9, info=small, **how)


def test_a_prompt_with_an_answer_leaves_room_for_a_token() -> None:
    assert admit(SamplingParams(max_tokens=None), prompt=[1] * 31).max_new == 1
    with pytest.raises(InvalidRequest, match="prompt has 32 tokens; at most 31 fit: the context holds 32 and one is for the answer"):
        admit(SamplingParams(max_tokens=None), prompt=[1] * 32)


def test_an_engine_that_gives_no_embeddings_refuses_to() -> None:
    with pytest.raises(InvalidRequest, match="pooling='mean': the engine of 'tiny' gives no embeddings"):
        admit(info=msgspec.structs.replace(INFO, hidden_size=0), pooling=Pooling())


NAN = float("nan")


@pytest.mark.parametrize(
    "fields",
    [
        *({name: NAN} for name in ("temperature", "top_p", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty")),
        {"logit_bias": {5: NAN}},
        {"logit_bias": {5: math.inf}},
        {"logit_bias": {5: 100.5}},
        {"temperature": -0.1},
        {"temperature": 2.1},
        {"top_p": 0.0},
        {"top_p": 1.1},
        {"top_k": -2},
        {"top_k": 2**31},
        {"min_p": 1.5},
        {"min_tokens": 2**31},
        {"max_tokens": 10**30},
        {"logprobs": -2},
        {"prompt_logprobs": 10**30},
        {"stop_token_ids": (2**31,)},
        {"bad_word_ids": ((),)},
        {"allowed_token_ids": ()},
        {"repetition_penalty": 0.0},
        {"seed": 2**63},
        {"n": 0},
    ],
)
def test_values_out_of_range_are_refused_where_they_are_made_and_where_they_arrive(fields: dict[str, Any]) -> None:
    name = next(iter(fields))
    with pytest.raises(InvalidRequest, match=name):
        SamplingParams(**fields)
    with pytest.raises(InvalidRequest, match=name):
        admit(spoiled(**fields))


@pytest.mark.parametrize(
    "fields",
    [
        {"temperature": "hot"},
        {"temperature": 10**5000},
        {"n": None},
        {"stop": 5},
        {"stop_token_ids": "ab"},
        {"logit_bias": [5]},
        {"bad_word_ids": (5,)},
    ],
)
def test_values_of_a_wrong_type_are_refused_by_name(fields: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest, match=r"\$\." + next(iter(fields)) if "temperature" not in fields else "sampling parameters"):
        SamplingParams(**fields)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"id": 5}, "request.id=5 must be of type str"),
        ({"id": "\ud800"}, "half of a surrogate pair"),
        ({"salt": None}, "request.salt=None must be of type str"),
        ({"salt": "\udfff"}, "half of a surrogate pair"),
        ({"priority": NAN}, "request.priority=nan must be of type int"),
        ({"priority": True}, "request.priority=True must be of type int"),
        ({"client": "0"}, "request.client='0' must be of type int"),
        ({"epoch": 1.5}, "request.epoch=1.5 must be of type int or NoneType"),
        ({"priority": 10**5000}, "request.priority must fit in 64 bits"),
        ({"prompt": [10**5000]}, "prompt holds token id <int>; the vocabulary"),
        ({"prompt": [1.5]}, "prompt must hold token ids"),
        ({"pooling": "mean"}, "request.pooling='mean' must be of type Pooling or NoneType"),
        ({"pooling": Pooling("max")}, "must be one of mean, last, cls"),  # pyright: ignore[reportArgumentType]
    ],
)
def test_fields_of_a_wrong_type_are_refused(fields: dict[str, Any], message: str) -> None:
    request = Request("r", [1], SamplingParams())
    for name, value in fields.items():
        msgspec.structs.force_setattr(request, name, value)
    core = build_core(build_runner())
    with pytest.raises(InvalidRequest, match=message):
        core.add(request)
    assert not core.has_work


NUMBERS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, VOCAB + 3),
    st.sampled_from([2**31, 2**63, -(2**63), 10**30, 10**400, EOS]),
    st.floats(),
    st.text(max_size=3),
    st.binary(max_size=3),
    st.just("\ud800"),
    st.builds(object),
)
GARBAGE = st.recursive(
    NUMBERS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(st.one_of(st.integers(-1, VOCAB), st.text(max_size=2), st.floats()), inner, max_size=3),
    ),
    max_leaves=6,
)
PARAM_FIELDS = SamplingParams.__struct_fields__
REQUEST_FIELDS = Request.__struct_fields__


@st.composite
def strange(draw: st.DrawFn) -> Request:
    """A request with anything in any of its fields."""
    params = spoiled(**draw(st.dictionaries(st.sampled_from(PARAM_FIELDS), GARBAGE, max_size=3)))
    request = Request("strange", [1, 2, 3], params)
    for name, value in draw(st.dictionaries(st.sampled_from(REQUEST_FIELDS), GARBAGE, max_size=2)).items():
        msgspec.structs.force_setattr(request, name, value)
    return request


@settings(deadline=None, max_examples=100)
@given(strange(), st.integers(0, 3), st.sampled_from([1, 4]), st.booleans())
def test_nothing_in_a_request_ends_the_engine_or_changes_its_neighbour(request: Request, after: int, rounds: int, ahead: bool) -> None:
    core = build_core(build_runner(num_scheduler_steps=rounds, async_scheduling=ahead))
    neighbour = Request("neighbour", [4, 5], SamplingParams(seed=3, max_tokens=20, ignore_eos=True))
    core.add(neighbour)
    inbox = Inbox()
    for _ in range(after):
        inbox.take(step(core))
    try:
        core.add(request)
    except RequestError as refused:
        assert len(str(refused)) < 1000 and str(refused).encode()
    answers = drain(core, inbox).answers
    assert answers[0, "neighbour"] == solo(neighbour, 128)
    assert all(answer.finish is not None for answer in answers.values())
