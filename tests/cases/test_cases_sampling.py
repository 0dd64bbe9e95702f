"""The default model, steered: what is forced, banned or given a form comes out so, and a plain stream beside it does not change.

C42: logit_bias. C61: filters at their ends. C64: tiny temperatures. C85: ids without text. C86: bad words. C87: answers of a given form.
The engine runs several steps at once where it may (num_scheduler_steps), and has few KV blocks, so that nothing here depends on one
step at a time, or on a sequence never being preempted.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from mqlab import LLM, SamplingParams
from mqlab.errors import InvalidRequest
from mqlab.front.textmodel import TextModel
from mqlab.params import StructuredOutputs
from mqlab.topologies import make_client
from mqlab.types import Choice
from mqlab.wire.spec import Spec
from mqlab.wire.wiring import Wiring

PROMPT = "The three primary colours are"
PLAIN = SamplingParams(temperature=0, max_tokens=20)
VOCAB = 49152


@pytest.fixture(scope="module")
def llm(model_folder: Path) -> Iterator[LLM]:
    limits = {"num_kv_blocks": 24, "max_model_len": 256, "num_threads": 1, "dtype": "float32", "num_scheduler_steps": 4}
    with LLM(str(model_folder), **limits) as llm:
        yield llm


@pytest.fixture(scope="module")
def text(model_folder: Path) -> TextModel:
    return TextModel.load(model_folder)


def answers(llm: LLM, params: list[SamplingParams], prompt: str = PROMPT) -> list[Choice]:
    """One to each, all at once, beside a plain stream that must be what it is alone."""
    completions = llm.generate([prompt] * (len(params) + 1), [*params, PLAIN], use_tqdm=False)
    assert completions[-1].choices == plain(llm, prompt).choices
    return [completion.choices[0] for completion in completions[:-1]]


_ALONE: dict[str, Any] = {}


def plain(llm: LLM, prompt: str = PROMPT) -> Any:
    """The greedy answer, asked alone the first time."""
    if prompt not in _ALONE:
        _ALONE[prompt] = llm.generate(prompt, PLAIN, use_tqdm=False)[0]
    return _ALONE[prompt]


# --- C87

NAME = {"type": "string", "maxLength": 12}
SCHEMAS: list[dict[str, Any]] = [
    {
        "type": "object",
        "properties": {"name": NAME, "age": {"type": "integer", "minimum": 0, "maximum": 120}},
        "required": ["name", "age"],
        "additionalProperties": False,
    },
    {"type": "array", "items": {"enum": ["red", "green", "blue"]}, "minItems": 3, "maxItems": 3},
    {"anyOf": [{"type": "boolean"}, {"type": "null"}]},
    {"$defs": {"word": {"type": "string", "pattern": "^[a-z]{2,5}$"}}, "type": "array", "items": {"$ref": "#/$defs/word"}, "maxItems": 3},
    {"type": "object", "properties": {"day": {"type": "string", "format": "date"}}, "required": ["day"], "additionalProperties": False},
]


def test_answers_under_a_schema_are_whole_and_valid_beside_a_plain_stream(llm: LLM) -> None:
    how: list[dict[str, Any]] = [{"temperature": 0}, {"temperature": 1, "seed": 5}]
    asked = [
        (schema, SamplingParams(max_tokens=90, structured_outputs=StructuredOutputs.of_schema(schema), **one))
        for schema in SCHEMAS
        for one in how
    ]
    for (schema, _), choice in zip(asked, answers(llm, [params for _, params in asked]), strict=True):
        assert choice.finish == "stop", choice
        jsonschema.validate(json.loads(choice.text), schema)


def test_answers_of_other_forms(llm: LLM) -> None:
    forms = [
        StructuredOutputs(regex=r"[A-Z][a-z]{2,6} [0-9]{4}"),
        StructuredOutputs(choice=("red, yellow and blue", "cyan")),
        StructuredOutputs(grammar='start: "[" item ("," item){1,2} "]"\nitem: /[a-z]{3}/'),
        StructuredOutputs(json_object=True),
    ]
    endless = [StructuredOutputs(regex="[0-9]+"), StructuredOutputs(regex="[0-9]{3}")]
    params = [
        SamplingParams(temperature=0, max_tokens=20, structured_outputs=form, ignore_eos=form in endless) for form in (*forms, *endless)
    ]
    month, choice, items, cut, digits, three = answers(llm, params)
    assert month.finish == choice.finish == items.finish == "stop"
    assert re.fullmatch(r"[A-Z][a-z]{2,6} [0-9]{4}", month.text)
    assert choice.text in ("red, yellow and blue", "cyan")
    assert re.fullmatch(r"\[[a-z]{3}(,[a-z]{3}){1,2}\]", items.text)
    assert digits.finish == "length" and digits.text.isdigit()
    assert three.finish == "stop" and re.fullmatch("[0-9]{3}", three.text) and len(three.tokens) <= 4
    assert len(cut.tokens) <= 20 and cut.text.startswith("{")
    assert cut.finish == "length" or json.loads(cut.text) is not None


def test_a_form_outlasts_preemption(llm: LLM) -> None:
    before = llm.stats().preemptions
    form = StructuredOutputs(regex="[0-9]{36}")
    got = answers(llm, [SamplingParams(seed=seed, max_tokens=60, structured_outputs=form) for seed in range(10)])
    assert llm.stats().preemptions > before
    assert all(re.fullmatch("[0-9]{36}", choice.text) and choice.finish == "stop" for choice in got)
    assert len({choice.text for choice in got}) == 10


def test_a_form_that_ends_before_min_tokens_fails_and_says_why(llm: LLM) -> None:
    params = SamplingParams(min_tokens=5, structured_outputs=StructuredOutputs(choice=("x",)))
    with pytest.raises(InvalidRequest, match="min_tokens"):
        llm.generate(PROMPT, params, use_tqdm=False)


def test_white_space_of_json_is_bounded_though_the_model_is_made_to_prefer_it(llm: LLM, text: TextModel) -> None:
    blanks = {text.tokenizer.encode(blank)[0]: 90.0 for blank in (" ", "  ", "\n", "\t", "\n\n", "    ")}
    schema = {"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"], "additionalProperties": False}
    [choice] = answers(
        llm, [SamplingParams(temperature=0, max_tokens=40, logit_bias=blanks, structured_outputs=StructuredOutputs.of_schema(schema))]
    )
    assert choice.finish == "stop" and isinstance(json.loads(choice.text)["a"], bool)
    assert " " in choice.text and "  " not in choice.text and "\n" not in choice.text


@pytest.mark.parametrize(
    ("form", "message"),
    [
        (StructuredOutputs(json='{"type": "objct"}'), "Invalid type: objct"),
        (StructuredOutputs(json="nothing"), "structured_outputs.json"),
        (StructuredOutputs(regex="("), "unclosed group"),
        (StructuredOutputs(grammar="start: nowhere"), "nowhere"),
    ],
)
def test_a_form_that_cannot_be_followed_is_refused(llm: LLM, form: StructuredOutputs, message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        llm.generate(PROMPT, SamplingParams(structured_outputs=form), use_tqdm=False)


# --- C42


@pytest.mark.parametrize("token", [VOCAB, -1, 10**12])
def test_a_bias_beyond_the_vocabulary_is_refused(llm: LLM, token: int) -> None:
    with pytest.raises(InvalidRequest, match="logit_bias"):
        llm.generate(PROMPT, SamplingParams(logit_bias={token: 1.0}), use_tqdm=False)


@pytest.mark.parametrize("value", [101, -100.5, math.nan, math.inf])
def test_a_bias_out_of_range_is_refused(value: float) -> None:
    with pytest.raises(InvalidRequest, match=r"logit_bias\[5\]"):
        SamplingParams(logit_bias={5: value})


def test_a_bias_forces_and_bans(llm: LLM) -> None:
    banned = dict.fromkeys(plain(llm).choices[0].tokens, -100.0)
    many = {**dict.fromkeys(range(1000, 1999), -1.0), VOCAB - 1: 100.0}
    params = [
        SamplingParams(temperature=0, max_tokens=6, logit_bias=many),
        SamplingParams(temperature=1, seed=1, max_tokens=6, logit_bias=many),
        SamplingParams(temperature=0, max_tokens=12, logit_bias=banned),
        SamplingParams(temperature=1, seed=1, max_tokens=12, logit_bias=banned),
    ]
    forced, forced_too, without, without_too = answers(llm, params)
    assert set(forced.tokens) == set(forced_too.tokens) == {VOCAB - 1}
    assert not banned.keys() & {*without.tokens, *without_too.tokens}


def test_only_allowed_ids_are_drawn(llm: LLM) -> None:
    allowed = (260, 28, 30, 7700, VOCAB - 1)
    params = [SamplingParams(temperature=temperature, seed=2, max_tokens=12, allowed_token_ids=allowed) for temperature in (0, 2)]
    greedy, hot = answers(llm, params)
    assert set(greedy.tokens) <= set(allowed) and set(hot.tokens) <= set(allowed)
    assert len(set(hot.tokens)) > 1


# --- C61, C64


def test_filters_at_their_ends_are_greedy_or_off(llm: LLM) -> None:
    hot = {"temperature": 2.0, "seed": 3, "max_tokens": 8}
    ends: list[dict[str, Any]] = [
        {"top_k": 1},
        {"top_k": 1, "top_p": 0.8},
        {"top_p": 1e-6},
        {"min_p": 1.0},
        {"min_p": 1.0, "top_k": 5, "top_p": 0.5},
    ]
    off: list[dict[str, Any]] = [{}, {"top_k": -1}, {"top_k": VOCAB}, {"top_k": VOCAB + 5}, {"top_p": 1.0, "min_p": 0.0}]
    got = answers(llm, [SamplingParams(**hot, **one) for one in ends + off])
    greedy = plain(llm).choices[0].tokens[:8]
    assert {choice.tokens for choice in got[: len(ends)]} == {greedy}
    assert len({choice.tokens for choice in got[len(ends) :]}) == 1
    assert got[-1].tokens != greedy and len(set(got[-1].tokens)) > 3


def test_tiny_temperatures_are_greedy(llm: LLM) -> None:
    params = [SamplingParams(temperature=10.0**-power, seed=seed, max_tokens=8) for power in range(4, 9) for seed in (None, 1)]
    assert {choice.tokens for choice in answers(llm, params)} == {plain(llm).choices[0].tokens[:8]}


# --- C86


def occurs(tokens: tuple[int, ...], ids: tuple[int, ...]) -> bool:
    return any(tokens[i : i + len(ids)] == ids for i in range(len(tokens)))


def test_bad_words_do_not_appear_and_the_beginning_of_a_phrase_may(llm: LLM, text: TextModel) -> None:
    spoken = plain(llm).choices[0].text
    words = re.findall(r"[a-z]{3,}", spoken)
    word, phrase = words[1], re.search(rf"{words[1]}\W+\w+", spoken)
    assert phrase is not None
    asked = [(word,), (f" {word}",), (word.capitalize(),), (phrase.group(),)]
    bare, spaced, capital, pair = answers(llm, [SamplingParams(temperature=0, max_tokens=20, bad_words=one) for one in asked])
    spellings = [tuple(text.tokenizer.encode(one)) for one in (word, f" {word}")]
    for choice in (bare, spaced):
        assert not any(occurs(choice.tokens, ids) for ids in spellings)
    assert bare == spaced != plain(llm).choices[0]
    assert capital == plain(llm).choices[0]
    assert not occurs(pair.tokens, tuple(text.tokenizer.encode(f" {phrase.group()}")))
    assert word in pair.text


def test_an_empty_bad_word_is_refused(llm: LLM) -> None:
    with pytest.raises(InvalidRequest, match="bad_words"):
        llm.generate(PROMPT, SamplingParams(bad_words=("",)), use_tqdm=False)


# --- C85


def test_special_tokens_are_hidden_or_shown_as_asked(llm: LLM) -> None:
    forced = {"temperature": 0, "max_tokens": 3, "logit_bias": {1: 100.0}}
    hidden, shown = answers(llm, [SamplingParams(**forced), SamplingParams(**forced, skip_special_tokens=False)])
    assert hidden.tokens == shown.tokens == (1, 1, 1)
    assert hidden.text == "" and shown.text == "<|im_start|>" * 3


def test_ids_behind_the_tokenizers_last_one_add_no_text(model_folder: Path, text: TextModel) -> None:
    echo = Spec("mqlab.engine.echo:build", {"path": str(model_folder), "vocab_size": VOCAB + 64, "eos_token_ids": ()})
    prompt = [*text.tokenizer.encode("One"), VOCAB, VOCAB + 63, *text.tokenizer.encode(" two")]
    with LLM.of(make_client("inproc", Wiring(echo))) as llm:
        choice = llm.generate([prompt], SamplingParams(max_tokens=len(prompt)), use_tqdm=False)[0].choices[0]
    assert (choice.text, choice.tokens, choice.finish) == ("One two", tuple(prompt), "length")
