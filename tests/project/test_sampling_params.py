"""The ranges of sampling parameters: what is refused names field, value and limit; what is at the edge is taken."""

from __future__ import annotations

import math
import re
from typing import Any

import pytest

from mqlab.errors import InvalidRequest
from mqlab.params import MAX_N, SamplingParams, StructuredOutputs

LEGAL: dict[str, list[Any]] = {
    "n": [1, 2, MAX_N],
    "presence_penalty": [-2, -2.0, 0, 2.0],
    "frequency_penalty": [-2.0, 2],
    "repetition_penalty": [5e-324, 0.5, 1, 1e300],
    "temperature": [0, 0.0, 1e-8, 1e-5, 2, 2.0],
    "top_p": [1e-6, 5e-324, 0.5, 1, 1.0],
    "top_k": [-1, 0, 1, 49_152, 2**31 - 1],
    "min_p": [0, 0.0, 0.5, 1],
    "seed": [None, 0, -(2**63), 2**63 - 1],
    "stop": [(), ("a",), ("\n", "é")],
    "stop_token_ids": [(), (0,), (2**31 - 1,)],
    "bad_words": [(), ("a b",)],
    "bad_word_ids": [(), ((0,), (1, 2))],
    "max_tokens": [None, 0, 1, 2**31 - 1],
    "min_tokens": [0, 16],
    "logprobs": [None, -1, 0, 20],
    "prompt_logprobs": [None, -1, 0, 20],
    "logit_bias": [{}, {0: -100, 1: 100.0, 2: 0.5}],
    "allowed_token_ids": [None, (0,), (0, 5, 5)],
    "structured_outputs": [None, StructuredOutputs(regex="a+")],
}

ILLEGAL: list[tuple[str, Any, str]] = [
    *(("n", value, f"must be in [1, {MAX_N}]") for value in (0, -1, MAX_N + 1)),
    *(
        (f"{name}_penalty", value, "must be in [-2, 2]")
        for name in ("presence", "frequency")
        for value in (-2.01, 2.01, math.nan, math.inf, -math.inf)
    ),
    *(("repetition_penalty", value, "must be a finite number above 0") for value in (0, -1.0, math.nan, math.inf)),
    *(("temperature", value, "must be in [0, 2]") for value in (-1e-9, 2.001, math.nan, math.inf, -math.inf)),
    *(("top_p", value, "must be in (0, 1]") for value in (0, 0.0, -0.1, 1.1, math.nan, math.inf)),
    *(("top_k", value, "must be at least 1") for value in (-2, -100, 2**31)),
    *(("min_p", value, "must be in [0, 1]") for value in (-0.01, 1.5, math.nan, math.inf)),
    *(("seed", value, "must fit in 64 bits") for value in (2**63, -(2**63) - 1, 2**64)),
    ("stop", ("a", ""), "must not hold an empty string"),
    *((name, value, "must hold token ids") for name in ("stop_token_ids", "allowed_token_ids") for value in ((-1,), (3, 2**31))),
    ("bad_words", ("",), "must not hold an empty string"),
    ("bad_word_ids", ((1,), ()), "must not hold an empty sequence"),
    *(("max_tokens", value, "must be at least 0") for value in (-1, 2**31)),
    ("min_tokens", -1, "must be at least 0"),
    ("min_tokens", 17, "must not exceed max_tokens (16)"),
    *((name, value, "must be at least 0, or -1") for name in ("logprobs", "prompt_logprobs") for value in (-2, -100)),
    *(("logit_bias", {7: value}, "must be in [-100, 100]") for value in (100.001, -101, math.nan, math.inf)),
    ("allowed_token_ids", (), "must hold at least one token id"),
]


@pytest.mark.parametrize(("field", "value"), [(field, value) for field, values in LEGAL.items() for value in values], ids=str)
def test_values_up_to_the_edge_are_taken(field: str, value: Any) -> None:
    assert getattr(SamplingParams(**{field: value}), field) == value


def test_every_field_with_a_range_is_tried_on_both_sides() -> None:
    switches = {"include_stop_str_in_output", "ignore_eos", "skip_special_tokens"}
    assert LEGAL.keys() == set(SamplingParams.__struct_fields__) - switches
    assert {field for field, *_ in ILLEGAL} == LEGAL.keys() - {"structured_outputs"}


@pytest.mark.parametrize(("field", "value", "limit"), ILLEGAL, ids=str)
def test_values_beyond_it_are_refused_with_field_value_and_limit(field: str, value: Any, limit: str) -> None:
    shown = repr(value[7] if field == "logit_bias" else value)
    with pytest.raises(InvalidRequest, match=rf"^{field}(\[7\])?={re.escape(shown)} {re.escape(limit)}"):
        SamplingParams(**{field: value})


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("n", "2"),
        ("temperature", "hot"),
        ("top_k", "x"),
        ("stop", 5),
        ("logit_bias", {"abc": 1.0}),
        ("logit_bias", {1: "x"}),
        ("seed", "x"),
    ],
    ids=str,
)
def test_values_of_another_type_are_refused(field: str, value: Any) -> None:
    with pytest.raises(InvalidRequest):
        SamplingParams(**{field: value})


@pytest.mark.parametrize("given", [{}, {"json": "{}", "regex": "a"}, {"json_object": True, "grammar": "start: 'a'"}], ids=str)
def test_structured_outputs_name_exactly_one_form(given: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest, match=r"structured_outputs=.* must name exactly one of json, regex, choice, grammar, json_object"):
        StructuredOutputs(**given)


@pytest.mark.parametrize("schema", [{"const": float("nan")}, {"const": object()}, {"enum": {1, 2}}], ids=["nan", "object", "set"])
def test_a_schema_is_json(schema: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest, match=r"structured_outputs\.json=.* must be plain JSON"):
        StructuredOutputs.of_schema(schema)


@pytest.mark.parametrize("choice", [(), ("a", "")], ids=str)
def test_a_choice_has_texts(choice: tuple[str, ...]) -> None:
    with pytest.raises(InvalidRequest, match=r"structured_outputs\.choice=.* must hold at least one text, and no empty one"):
        StructuredOutputs(choice=choice)


@pytest.mark.parametrize(
    ("params", "greedy", "penalised", "steers"),
    [
        ({}, False, False, False),
        ({"temperature": 0}, True, False, False),
        ({"temperature": 9e-6}, True, False, False),
        ({"temperature": 1e-5}, False, False, False),
        ({"top_k": 1}, True, False, False),
        ({"presence_penalty": 0.1}, False, True, True),
        ({"frequency_penalty": -0.1}, False, True, True),
        ({"repetition_penalty": 1.1}, False, True, True),
        ({"structured_outputs": StructuredOutputs(json_object=True)}, False, False, True),
        ({"bad_word_ids": ((1,),)}, False, False, False),
        ({"bad_word_ids": ((1,), (1, 2))}, False, False, True),
    ],
    ids=str,
)
def test_what_parameters_mean_for_the_engine(params: dict[str, Any], greedy: bool, penalised: bool, steers: bool) -> None:
    asked = SamplingParams(**params)
    assert (asked.greedy, asked.penalised, asked.steers) == (greedy, penalised, steers)


@pytest.mark.parametrize(("count", "length"), [(257, 1), (1, 16_385)], ids=["too many", "too long"])
def test_stop_strings_are_bounded(count: int, length: int) -> None:
    """Each is looked for in the text of every token."""
    SamplingParams(stop=("é" * 16_384,) * 256)
    with pytest.raises(InvalidRequest, match="at most 256 strings, each of at most 16384 characters"):
        SamplingParams(stop=("é" * length,) * count)
