"""Calls of tools are found in a text however it is cut, and what is none stays text."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqlab.text.toolcalls import HERMES, LLAMA3, CallFormat, CallParser, Part

ARGUMENTS: list[Any] = [
    {},
    {"city": "Praha", "days": 3},
    {
        "text": 'a "quoted" \\ back\\\\slash { } [ ] \n <tool_call> </tool_call> ; ünïcödé 🙂',
        "deep": {"list": [1, [2, {"x": "}"}]], "n": -1.5e3},
    },
    {"none": None, "yes": True, "empty": ""},
]
Read = tuple[str, list[tuple[str, str]]]


def spelled(form: CallFormat, name: str, arguments: Any, indent: int | None = None) -> str:
    return json.dumps({"name": name, form.key: arguments}, ensure_ascii=False, indent=indent)


def written(form: CallFormat, calls: list[str]) -> str:
    """An answer that makes these calls."""
    if form is HERMES:
        return "\n".join(f"<tool_call>\n{call}\n</tool_call>" for call in calls)
    return "; ".join(calls)


def read(form: CallFormat, pieces: list[str], **options: Any) -> Read:
    """What is said, and the name and arguments of each call."""
    parser = CallParser(form, **options)
    parts: list[Part] = [part for piece in pieces for part in parser.push(piece)] + parser.end()
    calls: list[tuple[str, str]] = []
    for part in parts:
        if isinstance(part, str):
            assert part, "no empty words"
        elif part.name is not None:
            assert part.index == len(calls), "calls are numbered as they come"
            calls.append((part.name, part.arguments))
        else:
            assert part.index == len(calls) - 1 and part.arguments, "pieces belong to the call that is open, and hold something"
            calls[-1] = (calls[-1][0], calls[-1][1] + part.arguments)
    assert parser.calls == len(calls)
    return "".join(part for part in parts if isinstance(part, str)), calls


def cuts(text: str) -> list[list[str]]:
    """Whole, in two at each place, and character by character."""
    return [[text], *([text[:place], text[place:]] for place in range(1, len(text))), list(text)]


@pytest.mark.parametrize("indent", [None, 2])
@pytest.mark.parametrize("form", [HERMES, LLAMA3], ids=lambda form: form.name)
def test_two_calls_cut_anywhere(form: CallFormat, indent: int | None) -> None:
    for arguments in ARGUMENTS:
        text = written(form, [spelled(form, "first", arguments, indent), spelled(form, "second", {"n": 1}, indent)])
        for pieces in cuts(text):
            words, calls = read(form, pieces)
            assert words == ""
            assert [name for name, _ in calls] == ["first", "second"]
            assert [json.loads(own) for _, own in calls] == [arguments, {"n": 1}]


@pytest.mark.parametrize(
    ("form", "text", "expected"),
    [
        (HERMES, "no call", ("no call", [])),
        (HERMES, " white\nspace \n", (" white\nspace \n", [])),
        (HERMES, "a <tool_calls> b <tool", ("a <tool_calls> b <tool", [])),
        (HERMES, "<tool_call>\n no {} call", ("<tool_call>\n no {} call", [])),
        (HERMES, '<tool_call>{"city": "x"}</tool_call>', ('<tool_call>{"city": "x"}</tool_call>', [])),
        (HERMES, "<tool_call> </tool_call>", ("<tool_call> </tool_call>", [])),
        (HERMES, '<tool_call>{"name": "f"', ('<tool_call>{"name": "f"', [])),
        (HERMES, 'Let me see.\n<tool_call>{"name": "f"}</tool_call>\n', ("Let me see.", [("f", "{}")])),
        (HERMES, '<tool_call>{"name": "f", "arguments": {"a": "x', ("", [("f", '{"a": "x')])),
        (HERMES, '<tool_call>{"arguments": {"a": 1}, "name": "f"}', ("", [("f", '{"a": 1}')])),
        (HERMES, '<tool_call>{"name": "f", "arguments": "{\\"a\\": 1}"}', ("", [("f", '{"a": 1}')])),
        (HERMES, '<tool_call>{"name": "f", "arguments": null}', ("", [("f", "{}")])),
        (HERMES, '<tool_call>{"name": "f", "arguments": 5}', ('<tool_call>{"name": "f", "arguments": 5}', [])),
        (HERMES, '<tool_call>{"name": "f", "arguments": nil}', ('<tool_call>{"name": "f", "arguments": nil}', [])),
        (HERMES, '<tool_call>{"name": 5, "arguments": {}}', ('<tool_call>{"name": 5, "arguments": {}}', [])),
        (HERMES, '<tool_call>{"name": "\\ud800", "arguments": {}}', ('<tool_call>{"name": "\\ud800", "arguments": {}}', [])),
        (HERMES, '<tool_call>{"name": "f", "arguments": {"a": 1}\n</tool_call> done', (" done", [("f", '{"a": 1}')])),
        (HERMES, '<tool_call>{"name": "f", "arguments": {}}}</tool_call> done ', (" done", [("f", "{}")])),
        (HERMES, '<tool_call>{"name": "f", "arguments": {}}<tool_call>{"name": "g", "arguments": {}}', ("", [("f", "{}"), ("g", "{}")])),
        (HERMES, '<tool_call>[{"name": "f"}, {"name": "g"}]</tool_call>', ('<tool_call>[{"name": "f"}, {"name": "g"}]</tool_call>', [])),
        (HERMES, '<tool_call>{"name": "f"}\n{"name": "g", "id": [1]}</tool_call>', ("", [("f", "{}"), ("g", "{}")])),
        (HERMES, '{"name": "f", "arguments": {}}', ('{"name": "f", "arguments": {}}', [])),
        (LLAMA3, '{"answer": {"name": "x"}}', ('{"answer": {"name": "x"}}', [])),
        (LLAMA3, ' {"name": "Ann", "age": 5} ', (' {"name": "Ann", "age": 5} ', [])),
        (LLAMA3, '{"type": "function", "name": "f", "parameters": {}}', ("", [("f", "{}")])),
        (LLAMA3, 'Sure: <|python_tag|>{"name": "f", "parameters": {}}', ("Sure:", [("f", "{}")])),
        (LLAMA3, '<|python_tag|>search.call("x")', ('<|python_tag|>search.call("x")', [])),
        (LLAMA3, '{"name": "f", "parameters": {}} and more', (" and more", [("f", "{}")])),
        (LLAMA3, '{"name": "f", "parameters": {}}; {"no": 1}', ('{"no": 1}', [("f", "{}")])),
        (LLAMA3, '{"name": "f", "parameters": {}}\n{"name": "g", "arguments": {}}', ("", [("f", "{}"), ("g", "{}")])),
        (LLAMA3, 'It is {"name": "f", "parameters": {}}', ('It is {"name": "f", "parameters": {}}', [])),
    ],
)
def test_what_is_a_call_and_what_is_not(form: CallFormat, text: str, expected: Read) -> None:
    for pieces in cuts(text):
        assert read(form, pieces) == expected, pieces


def test_further_calls_are_dropped_where_one_is_wanted() -> None:
    text = written(HERMES, [spelled(HERMES, "f", {}), spelled(HERMES, "g", {})])
    for pieces in cuts(text + " end"):
        assert read(HERMES, pieces, most=1) == (" end", [("f", "{}")])


def test_special_tokens_that_show_the_marks_are_hidden() -> None:
    text = 'a <|x|>b<|python_tag|>{"name": "f", "parameters": {"a": "<|x|>"}}'
    for pieces in cuts(text):
        assert read(LLAMA3, pieces, hidden=["<|x|>", "<|xy|>"]) == ("a b", [("f", '{"a": "<|x|>"}')])


LETTERS = st.sampled_from(
    ['"', "{", "}", "[", "]", "\\", "<tool_call>", "</tool_call>", '{"name":', '"arguments":', '"f"', ",", ":", ";", " ", "a", "n", "null"]
)


@given(st.lists(LETTERS, max_size=25).map("".join), st.data())
def test_any_text_means_the_same_however_it_is_cut(text: str, data: st.DataObject) -> None:
    places = sorted(data.draw(st.sets(st.integers(0, len(text)))))
    pieces = [text[begin:end] for begin, end in zip([0, *places], [*places, len(text)], strict=True)]
    for form in (HERMES, LLAMA3):
        assert read(form, pieces) == read(form, [text])
