"""What answers with tools are held to: each grammar takes what it should, to its end, and stops what it should not take."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mqlab.engine.grammar import Grammars
from mqlab.params import StructuredOutputs
from mqlab.server.openai.toolgrammar import CallGrammar
from mqlab.text.tokenizer import Tokenizer
from mqlab.text.toolcalls import HERMES, LLAMA3, CallFormat
from mqlab.types import ModelInfo

END = 2
TREE = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "type": "object",
    "properties": {"value": {"type": "integer"}, "next": {"$ref": "#"}, "kind": {"$ref": "#/$defs/Kind"}},
    "required": ["value"],
    "additionalProperties": False,
    "$defs": {"Kind": {"enum": ["a", "b"]}},
}
TOOLS: dict[str, Any] = {"tree": TREE, "any": {"type": "object"}}
ANSWER = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"], "additionalProperties": False}
GOOD = '{"name": "tree", "KEY": {"value": 1, "next": {"value": 2, "kind": "b"}}}'
OTHER = '{"name": "any", "KEY": {"x": [1]}}'
BAD = ['{"name": "tree", "KEY": {"value": "x"}}', '{"name": "tree", "KEY": {"value": 1, "kind": "c"}}', '{"name": "no", "KEY": {}}']

Follows = Callable[[str, str], bool]


@pytest.fixture(scope="module")
def follows(model_folder: Path) -> Follows:
    """Whether a text follows a grammar, and may end where it does."""
    tokenizer = Tokenizer.load(model_folder)
    info = ModelInfo(name="x", path=str(model_folder), vocab_size=49152, max_model_len=512, max_prompt_len=511, eos_token_ids=(END,))
    grammars = Grammars(info)

    def check(grammar: str, text: str) -> bool:
        guide = grammars.guide(StructuredOutputs(grammar=grammar))
        for token in [*tokenizer.encode(text, False), END]:
            if not (guide.mask()[token // 32] >> (token % 32)) & 1:
                return False
            guide.take(token)
        return True

    return check


def call(form: CallFormat, text: str) -> str:
    own = text.replace("KEY", form.key)
    return own if form.bare else f"{form.opens}\n{own}\n{form.closes}"


SPECIAL = CallFormat("hermes", "<repo_name>", "<reponame>", False, "arguments")


def grammar(form: CallFormat, many: bool = True) -> CallGrammar:
    return CallGrammar(form, TOOLS, many, {"<repo_name>", "<reponame>", "<|im_end|>"})


@pytest.mark.parametrize("form", [HERMES, LLAMA3, SPECIAL], ids=["hermes", "llama3", "special"])
def test_what_answers_with_tools_may_be(follows: Follows, form: CallFormat) -> None:
    good, other = call(form, GOOD), call(form, OTHER)
    two = f"{good}; {other}" if form.bare else f"{good}\n{other}"
    forced, one = grammar(form).forced(), grammar(form, many=False).forced()
    either, words = grammar(form).or_json(ANSWER), grammar(form).or_words()
    for own in (forced, one, either, words):
        assert follows(own, good) and follows(own, other)
        assert not any(follows(own, call(form, bad)) for bad in BAD)
    assert all(follows(own, two) for own in (forced, either, words))
    assert not follows(one, two)
    assert not any(follows(own, "words") for own in (forced, one, either))
    assert not any(follows(own, "") for own in (forced, one, either))
    assert follows(either, '{"city": "x"}') and not follows(either, '{"city": 1}')
    assert follows(words, "") and follows(words, "Words < { [ \n and so on")
    mark = "<|python_tag|>" if form.bare else ""
    assert follows(words, f"Let me see. {mark}{good}")
    assert not follows(words, f"Let me see. {form.opens}oops")
    assert not follows(forced, good.replace(": {", ":  {", 1)), "white space is bounded"
