"""Grammars over the default model's tokenizer: what a text may hold, where it may end, and what is refused."""

from __future__ import annotations

import json
import random
import re
import string
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest

from mqlab.contract.waiting import until_sync
from mqlab.engine import grammar
from mqlab.engine.grammar import MAX_UNDER_WAY, Grammars, TokenGuide
from mqlab.errors import InvalidRequest
from mqlab.params import StructuredOutputs
from mqlab.text.tokenizer import Tokenizer
from mqlab.types import ModelInfo

PADDED = 64
"""Ids of the model behind the tokenizer's last one."""
ENDS = (0, 2)


@dataclass
class Walk:
    """Texts that follow a grammar, drawn blindly from what its masks allow."""

    grammars: Grammars
    tokenizer: Tokenizer
    info: ModelInfo

    def allowed(self, guide: TokenGuide) -> list[int]:
        mask = guide.mask()
        assert mask.dtype == np.uint32 and len(mask) == -(-self.info.vocab_size // 32)
        return np.unpackbits(mask.view(np.uint8), bitorder="little").nonzero()[0].tolist()

    def text(self, wanted: StructuredOutputs, seed: int, limit: int = 400) -> str:
        """A whole text, without the end token behind it."""
        rng, guide, tokens = random.Random(seed), self.grammars.guide(wanted), list[int]()
        while not guide.done and len(tokens) < limit:
            token = rng.choice(self.allowed(guide))
            guide.take(token)
            tokens.append(token)
        assert not guide.error and guide.done
        assert tokens.pop() in ENDS
        return self.tokenizer.decode(tokens)

    def over(self, guide: TokenGuide) -> bool:
        """Whether the text can only end."""
        return self.allowed(guide) == list(ENDS)

    def after(self, wanted: StructuredOutputs, text: str, **options: Any) -> TokenGuide:
        """A guide that has taken ``text``."""
        guide = self.grammars.guide(wanted, **options)
        for token in self.tokenizer.encode(text):
            assert token in self.allowed(guide), (text, token)
            guide.take(token)
        return guide


@pytest.fixture(scope="module")
def walk(model_folder: Path) -> Walk:
    tokenizer = Tokenizer.load(model_folder)
    size = tokenizer.vocab_size + PADDED
    info = ModelInfo(name="m", path=str(model_folder), vocab_size=size, max_model_len=64, max_prompt_len=63, eos_token_ids=ENDS)
    return Walk(Grammars(info, patience=30.0), tokenizer, info)


SHORT = {"type": "string", "maxLength": 8}
SCHEMAS: list[dict[str, Any]] = [
    {
        "type": "object",
        "properties": {"name": SHORT, "age": {"type": "integer", "minimum": 0, "maximum": 150}},
        "required": ["name", "age"],
        "additionalProperties": False,
    },
    {"type": "array", "items": {"enum": ["red", "green", "blue"]}, "minItems": 2, "maxItems": 4},
    {"anyOf": [{"type": "boolean"}, {"type": "null"}, {"const": {"a": [1, 2]}}]},
    {"$defs": {"leaf": {"type": "string", "pattern": "^[a-z]{1,4}$"}}, "type": "array", "items": {"$ref": "#/$defs/leaf"}, "maxItems": 3},
    {"type": "object", "properties": {"d": {"type": "string", "format": "date"}, "x": SHORT}, "additionalProperties": False},
]


@pytest.mark.parametrize("schema", SCHEMAS)
def test_what_a_schema_allows_validates(walk: Walk, schema: dict[str, Any]) -> None:
    for seed in range(6):
        jsonschema.validate(json.loads(walk.text(StructuredOutputs.of_schema(schema), seed)), schema)


PATTERNS = [r"[0-9]{3}-[a-z]{1,5}", r"(yes|no)(, (yes|no)){0,3}", r"é[àç]{2}🙂?", r"\d{4}", r"^ab?$"]


@pytest.mark.parametrize("pattern", PATTERNS)
def test_what_a_pattern_allows_matches_it_as_a_whole(walk: Walk, pattern: str) -> None:
    assert all(re.fullmatch(pattern, walk.text(StructuredOutputs(regex=pattern), seed)) for seed in range(6))


CHOICES = ("yes", "yes indeed", 'a "quoted"\tone\n', "back\\slash", "émoji 🙂", " x", "/[.]*/", "\x01")


def test_each_choice_can_be_given_and_nothing_else(walk: Walk) -> None:
    for text in CHOICES:
        assert set(ENDS) & set(walk.allowed(walk.after(StructuredOutputs(choice=CHOICES), text)))
    assert {walk.text(StructuredOutputs(choice=CHOICES), seed) for seed in range(20)} <= set(CHOICES)


def test_twenty_thousand_choices(walk: Walk) -> None:
    choices = tuple(f"word {i}" for i in range(20_000))
    assert walk.text(StructuredOutputs(choice=choices), 0) in choices


def test_a_grammar_may_recurse(walk: Walk) -> None:
    wanted = StructuredOutputs(grammar='start: "(" start ")" | "x"')
    for seed in range(6):
        text = walk.text(wanted, seed)
        depth = text.count("(")
        assert text == "(" * depth + "x" + ")" * depth


def test_any_json_object(walk: Walk) -> None:
    wanted = StructuredOutputs(json_object=True)
    for text in ('{"a": 1}', '{"a":[true, null, -1.5e3, {"b": "c"}]}', "{}"):
        assert walk.over(walk.after(wanted, text))
    assert not set(walk.tokenizer.encode("[")) & set(walk.allowed(walk.grammars.guide(wanted)))


@pytest.mark.parametrize("schema", [{"type": "object"}, {"type": "object", "x-guidance": {"whitespace_pattern": " *"}}])
@pytest.mark.parametrize("text", ["{", '{"a":', '{"a": 1', '{"a": [', '{"a": 1,'])
def test_white_space_in_json_is_a_single_space(walk: Walk, schema: dict[str, Any], text: str) -> None:
    wanted = StructuredOutputs.of_schema(schema)
    blanks = {i: walk.tokenizer.decode([i]) for i in walk.allowed(walk.after(wanted, text))}
    spaces = {text for text in blanks.values() if text and not text.strip()}
    assert spaces <= {" "}
    assert not any(text.strip(" ") != text.strip() or text.startswith("  ") for text in blanks.values())


def test_a_text_may_end_where_its_grammar_is_satisfied(walk: Walk) -> None:
    digits = StructuredOutputs(regex="[0-9]{1,2}")
    assert not set(ENDS) & set(walk.allowed(walk.grammars.guide(digits)))
    one = walk.after(digits, "7")
    assert set(ENDS) < set(walk.allowed(one))
    assert walk.over(walk.after(digits, "77"))


def test_with_ignore_eos_a_text_goes_on_for_as_long_as_its_grammar_lets_it(walk: Walk) -> None:
    digits = StructuredOutputs(regex="[0-9]{1,2}")
    one = walk.after(digits, "7", ignore_eos=True)
    assert walk.allowed(one) == sorted(walk.tokenizer.encode(digit)[0] for digit in string.digits)
    assert walk.over(walk.after(digits, "77", ignore_eos=True))
    assert walk.allowed(walk.grammars.guide(StructuredOutputs(regex=""), ignore_eos=True)) == list(ENDS)


def test_ids_without_text_are_never_allowed(walk: Walk) -> None:
    for pattern in (".*", "(?s:.)*"):
        assert max(walk.allowed(walk.grammars.guide(StructuredOutputs(regex=pattern)))) < walk.tokenizer.vocab_size


def test_a_tokenizer_larger_than_the_model_gives_no_ids_beyond_it(walk: Walk, model_folder: Path) -> None:
    small = ModelInfo(name="m", path=str(model_folder), vocab_size=1000, max_model_len=64, max_prompt_len=63, eos_token_ids=(0, 2))
    mask = Grammars(small).guide(StructuredOutputs(regex="(?s:.)*")).mask()
    assert len(mask) == 32
    allowed = np.unpackbits(mask.view(np.uint8), bitorder="little").nonzero()[0]
    assert len(allowed) > 500 and allowed.max() < 1000


def test_a_model_without_end_tokens_ends_with_its_grammar(model_folder: Path, walk: Walk) -> None:
    info = ModelInfo(name="m", path=str(model_folder), vocab_size=walk.tokenizer.vocab_size, max_model_len=64, max_prompt_len=63)
    endless = Walk(Grammars(info), walk.tokenizer, info)
    assert not set(ENDS) & set(endless.allowed(endless.after(StructuredOutputs(regex="a+"), "a")))
    over = endless.after(StructuredOutputs(regex="ab"), "ab")
    (end,) = endless.allowed(over)
    over.take(end)
    assert over.done


def test_texts_under_one_grammar_do_not_disturb_each_other(walk: Walk) -> None:
    wanted = StructuredOutputs(regex="a(b|c)")
    first, second = walk.grammars.guide(wanted), walk.grammars.guide(wanted)
    first.take(walk.tokenizer.encode("a")[0])
    assert walk.allowed(second) == walk.allowed(walk.grammars.guide(wanted)) != walk.allowed(first)


def test_a_token_that_was_not_allowed_leaves_an_empty_mask_and_says_why(walk: Walk) -> None:
    guide = walk.grammars.guide(StructuredOutputs(regex="[0-9]+"))
    guide.take(walk.tokenizer.encode("x")[0])
    assert not guide.mask().any() and not guide.done
    assert guide.error.startswith("structured_outputs: ")


def test_a_text_that_outgrows_the_parser_leaves_an_empty_mask_and_says_why(walk: Walk) -> None:
    guide = walk.grammars.guide(StructuredOutputs(grammar='start: ("a"{1,1000}){1,1000}'))
    token = walk.tokenizer.encode("a")[0]
    steps = 0
    while guide.mask().any() and steps < 5000:
        guide.take(token)
        steps += 1
    assert 0 < steps < 5000 and "max is" in guide.error and len(guide.error) < 500


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"json": "{"}, "structured_outputs.json: "),
    ({"json": "true"}, "must be a JSON schema that is an object"),
    ({"json": '{"type": "objct"}'}, "structured_outputs.json cannot be followed: Invalid type: objct"),
    ({"json": '{"if": {}}'}, r'Unimplemented keys: \["if"\]'),
    ({"json": '{"$ref": "#"}'}, "structured_outputs.json cannot be followed"),
    ({"json": "[" * 100_000}, "structured_outputs.json"),
    ({"json": '{"items":' * 5000 + "{}" + "}" * 5000}, "recursion"),
    ({"json": '{"x": "' + "x" * 2**18 + '"}'}, "at most 262144 are compiled"),
    ({"json": json.dumps({"pattern": "x" * 9000, "patternProperties": {"y" * 9000: {}}})}, "patterns of 18000 characters; at most 16384"),
    ({"json": json.dumps({"anyOf": [{"type": "integer", "multipleOf": 30_001}, {"multipleOf": 2.0001}]})}, "come to all together 50002"),
    ({"regex": "("}, "structured_outputs.regex cannot be followed: .*unclosed group"),
    ({"regex": "(?=a)b"}, "look-ahead"),
    ({"regex": "\ud800"}, "surrogates"),
    ({"regex": "x" * 2**14 + "y"}, "regex of 16385 characters; at most 16384 are compiled"),
    ({"grammar": "start: nowhere"}, 'unknown name: "nowhere"'),
    ({"grammar": "("}, "structured_outputs.grammar cannot be followed"),
    ({"grammar": "start: " + "(" * 8000}, "deeply nested"),
    ({"grammar": "start: " + '"x" ' * 5000}, "grammar of 20007 characters; at most 16384"),
    ({"grammar": 'start: %json {"x": "' + "x" * 2**18 + '"}'}, "grammar of 262166 characters; at most 262144"),
    ({"grammar": 'start: %json {"pattern": "' + "x" * 17000 + '"}'}, "grammar: its patterns of 17000 characters; at most 16384"),
    ({"grammar": 'start: %json {"multipleOf": 60001}'}, "grammar: its multipleOf come to all together 60001"),
    ({"grammar": "start: %json " + '{"items":' * 5000 + "{}" + "}" * 5000}, "recursion"),
    ({"choice": ("x" * 2**18, "y")}, "choice of 262145 characters"),
]


def test_a_grammar_may_hold_long_schemas(walk: Walk) -> None:
    names = json.dumps({"enum": [f"{'x' * 30}{number}" for number in range(1000)]})
    grammar = StructuredOutputs(grammar=f'start: "a" %json {names} | "%json {{" "b"')
    assert walk.grammars.guide(grammar).mask().any()


@pytest.mark.parametrize(("fields", "message"), REFUSED)
def test_what_cannot_be_followed_is_refused_in_a_few_words(walk: Walk, fields: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidRequest, match=message) as refused:
        walk.grammars.guide(StructuredOutputs(**fields))
    assert len(str(refused.value)) < 500
    assert str(refused.value).encode()


def rules(count: int) -> StructuredOutputs:
    names = [f"r{i:x}" for i in range(count)]
    return StructuredOutputs(grammar="start:r0\n" + "\n".join(map(":".join, pairwise(names))) + f'\n{names[-1]}:"a"')


def references(count: int, link: Callable[[dict[str, str]], dict[str, Any]]) -> StructuredOutputs:
    chain = {f"{i:x}": link({"$ref": f"#/$defs/{i + 1:x}"}) for i in range(count)}
    schema = {"$defs": {**chain, f"{count:x}": {"const": "a"}}, "$ref": "#/$defs/0"}
    return StructuredOutputs(json=json.dumps(schema, separators=(",", ":")))


@pytest.mark.parametrize(
    ("wanted", "text"),
    [
        (rules(1200), "a"),
        (references(8000, lambda ref: ref), '"a"'),
        (references(2200, lambda ref: {"type": "array", "items": ref}), "[[]]"),
    ],
)
def test_chains_as_long_as_a_text_may_hold_do_not_end_the_process(walk: Walk, wanted: StructuredOutputs, text: str) -> None:
    assert walk.over(walk.after(wanted, text))


def test_what_takes_long_is_refused_for_now_and_had_later(model_folder: Path) -> None:
    info = ModelInfo(name="m", path=str(model_folder), vocab_size=49152, max_model_len=64, max_prompt_len=63, eos_token_ids=ENDS)
    grammars = Grammars(info, patience=0.0)
    large = [StructuredOutputs(choice=tuple(f"{kind}{i}" for i in range(30_000))) for kind in "abc"]
    for wanted in large[:MAX_UNDER_WAY]:
        with pytest.raises(InvalidRequest, match="takes more than 0 s to compile"):
            grammars.guide(wanted)
    with pytest.raises(InvalidRequest, match="still being compiled"):
        grammars.guide(large[0])
    with pytest.raises(InvalidRequest, match="are being compiled just now"):
        grammars.guide(large[2])
    until_sync(lambda: had(grammars, large[0]), timeout=30)
    until_sync(lambda: had(grammars, large[1]), timeout=30)


def test_what_is_compiled_beside_the_engine_does_not_pile_up(model_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grammar, "MAX_COMPILED", 1)
    info = ModelInfo(name="m", path=str(model_folder), vocab_size=49152, max_model_len=64, max_prompt_len=63, eos_token_ids=ENDS)
    grammars = Grammars(info, patience=0.0)
    several = [StructuredOutputs(choice=tuple(f"{kind}{i}" for i in range(3000))) for kind in "abcde"]
    for wanted in several:  # none of them is ever had, so that only what comes back from beside the engine is kept
        until_sync(partial(begun, grammars, wanted), timeout=30)
    assert not had(grammars, several[0])


def begun(grammars: Grammars, wanted: StructuredOutputs) -> bool:
    with pytest.raises(InvalidRequest) as refused:
        grammars.guide(wanted)
    return "takes more than" in str(refused.value)


def had(grammars: Grammars, wanted: StructuredOutputs) -> bool:
    try:
        return bool(grammars.guide(wanted).mask().any())
    except InvalidRequest:
        return False


@pytest.mark.parametrize("written", [None, "{", "{}"])
def test_an_engine_without_a_fitting_tokenizer_follows_no_grammar(tmp_path: Path, written: str | None) -> None:
    if written is not None:
        (tmp_path / "tokenizer.json").write_text(written)
    info = ModelInfo(name="bare", path=str(tmp_path), vocab_size=100, max_model_len=64, max_prompt_len=63)
    with pytest.raises(InvalidRequest, match=r"structured_outputs.*leave it out"):
        Grammars(info).guide(StructuredOutputs(json_object=True))
