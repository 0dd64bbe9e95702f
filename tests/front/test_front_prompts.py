"""What is a prompt, what is not, and what the refusals say."""

from __future__ import annotations

import array
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqlab.errors import InvalidRequest
from mqlab.front.prompts import as_chat, check_characters, checked_ids, checked_params
from mqlab.types import ModelInfo, SamplingParams

INFO = ModelInfo(name="m", vocab_size=100, max_model_len=32, max_prompt_len=31, num_blocks=8, block_size=16)
SMALL_POOL = ModelInfo(name="m", vocab_size=100, max_model_len=32, max_prompt_len=15, num_blocks=4, block_size=4)


@pytest.mark.parametrize("ids", [[1, 2], (1, 2), array.array("i", [1, 2]), np.array([1, 2]), [np.int64(1), 2], range(1, 3)])
def test_integers_of_any_kind_become_plain_ids(ids: Any) -> None:
    plain = checked_ids(ids, INFO)
    assert plain == [1, 2]
    assert all(type(one) is int for one in plain)


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        ([], "0 tokens; it needs at least 1"),
        (b"ab", "type bytes"),
        (bytearray(b"ab"), "type bytearray"),
        ({"role": "user"}, "type dict"),
        (None, "type NoneType"),
        (7, "type int"),
        ([True, 2], r"prompt\[0\]=True is of type bool, not a token id"),
        ([1, 2.0], r"prompt\[1\]=2.0 is of type float"),
        (["hi"], r"prompt\[0\]='hi' is of type str"),
        ([[1]], r"prompt\[0\]=\[1\] is of type list"),
        ([1, None], r"prompt\[1\]=None"),
        ([1, 100], "token id 100; the vocabulary of 'm' has ids 0 to 99"),
        ([-1], "token id -1"),
        ([2**70], "token id 1180591620717411303424"),
        ([1] * 32, r"32 tokens; at most 31 fit \(the context holds 32, and one is for the answer\): shorten .* raise --max-model-len"),
    ],
)
def test_what_is_no_prompt_is_refused(prompt: Any, message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        checked_ids(prompt, INFO)


def test_the_longest_prompt_is_taken() -> None:
    assert len(checked_ids([1] * 31, INFO)) == 31


def test_a_small_pool_is_named_when_it_is_the_limit() -> None:
    with pytest.raises(InvalidRequest, match=r"16 tokens; at most 15 fit .*context holds 32 and the KV pool 16.*--num-kv-blocks"):
        checked_ids([1] * 16, SMALL_POOL)


@given(length=st.integers(0, 2000), longest=st.integers(1, 50))
def test_text_is_refused_by_its_characters_only_if_it_cannot_fit(length: int, longest: int) -> None:
    fewest_tokens = -(-length // longest)
    try:
        check_characters("x" * length, longest, INFO)
    except InvalidRequest:
        assert fewest_tokens > INFO.max_prompt_len


def test_hopeless_text_is_refused_with_its_true_numbers() -> None:
    with pytest.raises(InvalidRequest, match="1000 characters, at least 100 tokens; at most 31 fit"):
        check_characters("x" * 1000, 10, INFO)


@pytest.mark.parametrize(("prompt", "chat"), [("hi", False), ([1], False), ([], False), ([{"role": "user"}], True), (b"x", False)])
def test_messages_are_told_from_ids(prompt: Any, chat: bool) -> None:
    assert (as_chat(prompt) is not None) is chat


def test_one_stop_string_is_a_tuple_of_one() -> None:
    assert checked_params(SamplingParams(stop="END")).stop == ("END",)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"max_tokens": 5.5}, r"max_tokens"),
        ({"seed": 1.5}, r"seed"),
        ({"stop": (5,)}, r"stop"),
        ({"stop_token_ids": (1.5,)}, r"stop_token_ids"),
        ({"stop": ("\ud800",)}, r"stop holds '\\ud800' at 0"),
    ],
)
def test_parameters_of_a_wrong_type_are_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        checked_params(SamplingParams(**fields))


def test_what_is_no_sampling_params_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="must be SamplingParams"):
        checked_params({"max_tokens": 5})  # pyright: ignore[reportArgumentType]
