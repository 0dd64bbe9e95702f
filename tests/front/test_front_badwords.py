"""Bad words become every token sequence that spells them at a text's beginning and after a space. C86; shapes of lists: C79."""

from __future__ import annotations

from typing import Any

import pytest

from mqlab.errors import InvalidRequest
from mqlab.front.badwords import MAX_CHARACTERS, MAX_WORDS, with_bad_word_ids
from mqlab.front.prompts import checked_params
from mqlab.front.textmodel import TextModel
from mqlab.params import StructuredOutputs
from mqlab.types import SamplingParams


class Tokens:
    """A tokenizer that knows a few texts."""

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        assert not add_special_tokens
        return {"cat": [7], " cat": [8, 9], "x": [5], " x": [5]}.get(text, [])


def spelled(*words: str, **fields: Any) -> tuple[tuple[int, ...], ...]:
    return with_bad_word_ids(SamplingParams(bad_words=words, **fields), Tokens()).bad_word_ids  # pyright: ignore[reportArgumentType]


def test_both_spellings_are_held_off_whatever_their_lengths() -> None:
    assert spelled("cat") == spelled(" cat") == spelled("cat", "  cat") == ((7,), (8, 9))


def test_a_tokenizer_that_spells_both_alike_gives_one() -> None:
    assert spelled("x") == ((5,),)


def test_ids_that_were_given_stay() -> None:
    assert spelled("cat", bad_word_ids=((1, 2), (7,))) == ((1, 2), (7,), (8, 9))


def test_without_bad_words_nothing_changes() -> None:
    params = SamplingParams(bad_word_ids=((1, 2),))
    assert with_bad_word_ids(params, Tokens()) is params  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("cat", "unknown"), "bad_words holds 'unknown', which has no tokens"),
        (("x" * (MAX_CHARACTERS + 1),), "one of 1025 characters; at most 1024"),
        (("x",) * (MAX_WORDS + 1), "bad_words holds 1025; at most 1024"),
    ],
)
def test_words_that_cannot_be_looked_for_are_refused(words: tuple[str, ...], message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        spelled(*words)


@pytest.mark.parametrize("word", ["river", "purple elephant", " ", "\n", "🙂", "Zürich"])
def test_a_word_of_the_default_model_is_spelled_by_its_ids(word: str, text: TextModel) -> None:
    found = with_bad_word_ids(SamplingParams(bad_words=(word,)), text.tokenizer).bad_word_ids
    texts = {text.tokenizer.decode(ids) for ids in found}
    assert texts == ({" "} if word == " " else {word, f" {word}"})


@pytest.mark.parametrize("field", ["stop", "bad_words"])
@pytest.mark.parametrize(("given", "kept"), [("end", ("end",)), (["a", "b"], ("a", "b")), ([], ()), ((), ()), (["x"] * 5, ("x",) * 5)])
def test_lists_of_strings_in_any_shape(field: str, given: Any, kept: tuple[str, ...]) -> None:
    assert getattr(checked_params(SamplingParams(**{field: given})), field) == kept


@pytest.mark.parametrize("field", ["stop", "bad_words"])
@pytest.mark.parametrize("given", [[""], ["a", ""], 5, [5], [["a"]], {"a": 1}.values(), [b"a"], ["\ud800"], None])
def test_lists_that_hold_no_usable_strings_are_refused(field: str, given: Any) -> None:
    with pytest.raises(InvalidRequest, match=field):
        checked_params(SamplingParams(**{field: given}))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"regex": 5}, "structured_outputs.regex"),
        ({"choice": ["a", 5]}, "structured_outputs.choice"),
        ({"choice": "ab"}, "structured_outputs.choice"),
        ({"json_object": 1}, "structured_outputs.json_object"),
        ({"grammar": "\ud800"}, "structured_outputs.grammar holds"),
    ],
)
def test_forms_of_a_wrong_type_are_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        checked_params(SamplingParams(structured_outputs=StructuredOutputs(**fields)))


def test_a_form_as_a_list_is_a_tuple() -> None:
    given = StructuredOutputs(choice=["a", "b"])  # pyright: ignore[reportArgumentType]
    assert checked_params(SamplingParams(structured_outputs=given)).structured_outputs == StructuredOutputs(choice=("a", "b"))
