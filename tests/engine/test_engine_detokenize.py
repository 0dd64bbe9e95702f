"""Detokenising on the engine's side gives the text that the front would have made."""

from __future__ import annotations

from pathlib import Path

import pytest

from mqlab.engine.core import step
from mqlab.engine.detokenize import DetokenizingCore
from mqlab.engine.echo import build
from mqlab.errors import ModelError
from mqlab.text.tokenizer import Tokenizer
from mqlab.types import Request, SamplingParams, Step

TEXT = "Paris, 1889 — naïve café 😀 and more."


def run(core: DetokenizingCore, request: Request) -> tuple[str, list[int]]:
    core.add(request)
    text, tokens = "", []
    while core.has_work:
        for event in step(core):
            assert isinstance(event, Step)
            text += "".join(delta.text or "" for delta in event.deltas)
            tokens += [token for delta in event.deltas for token in delta.tokens]
    return text, tokens


def test_text_comes_with_the_tokens(model_folder: Path) -> None:
    prompt = Tokenizer.load(model_folder).encode(TEXT)
    core = DetokenizingCore(build(path=str(model_folder)))
    text, tokens = run(core, Request("a", prompt, SamplingParams(max_tokens=len(prompt), ignore_eos=True)))
    assert (text, tokens) == (TEXT, prompt)
    again, _ = run(core, Request("a", prompt, SamplingParams(max_tokens=len(prompt), ignore_eos=True)))
    assert again == TEXT


def test_stop_strings_are_left_to_the_front(model_folder: Path) -> None:
    prompt = Tokenizer.load(model_folder).encode(TEXT)
    core = DetokenizingCore(build(path=str(model_folder)))
    core.add(Request("a", prompt, SamplingParams(max_tokens=3, stop=("1889",))))
    deltas = [delta for event in step(core) if isinstance(event, Step) for delta in event.deltas]
    assert [delta.text for delta in deltas] == [None]


def test_an_aborted_request_is_forgotten(model_folder: Path) -> None:
    core = DetokenizingCore(build(path=str(model_folder)))
    core.add(Request("a", [10, 11], SamplingParams(max_tokens=9)))
    (last,) = core.abort(("a",))
    assert last.finish == "abort"
    assert last.text == ""
    text, _ = run(core, Request("a", Tokenizer.load(model_folder).encode("Hi"), SamplingParams(max_tokens=1, ignore_eos=True)))
    assert text == "Hi"


def test_a_core_without_a_tokenizer_is_refused() -> None:
    with pytest.raises(ModelError, match="names no model folder"):
        DetokenizingCore(build())
