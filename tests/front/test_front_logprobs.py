"""Logprobs at the front: each token with its text, aligned with the text however the deltas are cut, and cut where a stop string cuts."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import aclosing
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st

from mqlab.front.frontend import Frontend
from mqlab.front.llm import LLM
from mqlab.front.logprobs import echo_texts, token_texts
from mqlab.front.textmodel import TextModel
from mqlab.logprobs import Logprobs
from mqlab.text.tokenizer import Tokenizer
from mqlab.topologies import TOPOLOGIES
from mqlab.types import Completion, Delta, Finish, Request, SamplingParams, TokenLogprob

Echo = Callable[..., Any]
TALK = " Příliš 🙂🙂 said: 42 hellos, 你好 世界, one by one. END of it."
BEYOND, END = 49900, 2


def packed(tokens: list[int], count: int = 2) -> Logprobs | None:
    """Token t with logprob -t/1000 and rank t; others below it."""
    if not tokens:
        return None
    rows = np.array([[token, *(token + i for i in range(count))] for token in tokens], np.int32)
    return Logprobs.pack(rows, (-rows / 1000).astype(np.float32), np.array(tokens, np.int32))


def scripted_deltas(tokens: list[int], cuts: list[int], finish: Finish = "length") -> Callable[[Request], list[Any]]:
    edges = sorted({0, len(tokens), *(min(one, len(tokens)) for one in cuts)})

    def script(request: Request) -> list[Any]:
        deltas = [Delta(request.id, tokens[a:b], logprobs=packed(tokens[a:b])) for a, b in pairwise(edges)]
        deltas[-1].finish = finish
        return deltas

    return script


def check_aligned(tokens: tuple[int, ...], logprobs: tuple[TokenLogprob, ...] | None) -> None:
    assert logprobs is not None
    assert tuple(one.token for one in logprobs) == tokens
    for one in logprobs:
        assert (one.logprob, one.rank) == (pytest.approx(-one.token / 1000), one.token)
        assert [(other.token, other.rank) for other in one.top] == [(one.token, one.rank), (one.token + 1, 2)]
        assert (one.top[0].text, one.top[0].raw) == (one.text, one.raw), "the chosen one reads the same among the likeliest"


async def whole_and_streamed(front: Frontend, params: SamplingParams) -> Completion:
    """The completion, once the outputs of a stream have been found to be the same."""
    whole = await front.complete([5], params)
    outputs = [output async for output in front.generate([5], params)]
    (choice,) = whole.choices
    assert "".join(output.text for output in outputs) == choice.text
    assert tuple(one for output in outputs for one in output.logprobs or ()) == choice.logprobs
    assert all(len(output.tokens) == len(output.logprobs or ()) for output in outputs)
    return whole


@settings(max_examples=25, deadline=None)
@given(
    cuts=st.lists(st.integers(1, 60), max_size=20),
    stop=st.sampled_from([(), ("42",), ("š 🙂",), (" by one. E",), ("never",)]),
    holes=st.lists(st.integers(0, 30), max_size=3),
    skip=st.booleans(),
)
async def test_texts_joined_are_the_text(
    scripted: Any, text: TextModel, cuts: list[int], stop: tuple[str, ...], holes: list[int], skip: bool
) -> None:
    """Also with ids that the tokenizer does not know, and special ones, in between."""
    tokens = text.tokenizer.encode(TALK)
    for place, hole in enumerate(holes):
        tokens.insert(hole, BEYOND if place % 2 else END)
    front = Frontend(scripted(scripted_deltas(tokens, cuts)), text)
    (choice,) = (await whole_and_streamed(front, SamplingParams(stop=stop, logprobs=2, skip_special_tokens=skip))).choices
    check_aligned(choice.tokens, choice.logprobs)
    joined = "".join(one.text for one in choice.logprobs or ())
    if choice.stop_reason is None:
        assert joined == choice.text == text.tokenizer.decode(tokens, skip)
    else:
        assert choice.stop_reason in joined
        assert joined.startswith(choice.text + choice.stop_reason)


async def test_what_an_id_without_an_entry_and_a_special_one_read_as(scripted: Any, text: TextModel) -> None:
    tokens = [*text.tokenizer.encode("hi"), BEYOND, END, 2**31 - 9, *text.tokenizer.encode(" you"), END]
    for skip, shown in ((True, "hi you"), (False, "hi<|im_end|> you")):
        front = Frontend(scripted(scripted_deltas(tokens, [1, 2, 3, 4, 5], "stop"), vocab_size=2**31 - 1), text)
        (choice,) = (await whole_and_streamed(front, SamplingParams(logprobs=0, skip_special_tokens=skip))).choices
        found = choice.logprobs or ()
        assert choice.text == "".join(one.text for one in found) == shown
        assert [one.raw for one in found] == [b"hi", b"", b"<|im_end|>", b"", b" you", b"<|im_end|>"]
        assert [one.label for one in found] == ["hi", "", "<|im_end|>", "", " you", "<|im_end|>"]
        assert found[-1].text == "", "the end token is no text, whatever is skipped"


async def test_the_parts_of_a_character(scripted: Any, text: TextModel) -> None:
    tokens = text.tokenizer.encode("🙂🙃")
    front = Frontend(scripted(scripted_deltas(tokens, [1, 2, 3])), text)
    (choice,) = (await whole_and_streamed(front, SamplingParams(logprobs=0))).choices
    found = choice.logprobs or ()
    assert b"".join(one.raw for one in found).decode() == choice.text == "🙂🙃"
    assert all("\ufffd" not in one.text for one in found)
    partial = next(one for one in found if not one.text)
    assert partial.label == "bytes:" + "".join(f"\\x{byte:02x}" for byte in partial.raw)


async def test_nothing_is_given_unasked(scripted: Any, text: TextModel) -> None:
    completion = await Frontend(scripted(lambda request: [Delta(request.id, [5, 6], "length")]), text).complete([5], SamplingParams())
    assert completion.choices[0].logprobs is None
    assert completion.prompt_logprobs is None


async def test_only_the_first_choice_scores_the_prompt(scripted: Any, text: TextModel) -> None:
    client = scripted(lambda request: [Delta(request.id, [5], "length", logprobs=packed([5]), prompt_logprobs=packed([8, 9]))])
    completion = await Frontend(client, text).complete([7, 8, 9], SamplingParams(n=3, logprobs=1, prompt_logprobs=1))
    assert [request.params.prompt_logprobs for request in client.requests] == [1, None, None]
    first, *scored = completion.prompt_logprobs or ()
    assert first is None
    check_aligned((8, 9), tuple(one for one in scored if one is not None))
    assert all(len(choice.logprobs or ()) == 1 for choice in completion.choices)


async def test_a_prompt_of_one_token_has_nothing_to_score(scripted: Any, text: TextModel) -> None:
    client = scripted(lambda request: [Delta(request.id, [5], "length")])
    assert (await Frontend(client, text).complete([7], SamplingParams(prompt_logprobs=3))).prompt_logprobs == (None,)


@pytest.mark.parametrize("topology", TOPOLOGIES)
async def test_every_topology_brings_them(echo: Echo, topology: str) -> None:
    """An echo core gives each token probability 1/2, and half of it to each next id."""
    params = SamplingParams(n=2, max_tokens=12, stop=("never",), logprobs=1, prompt_logprobs=2)
    prompt = "one 🙂 two"
    async with echo(topology) as client:
        front = Frontend.of(client)
        completion = await front.complete(prompt, params)
        outputs = [output async for output in front.generate(prompt, params)]
    scored = completion.prompt_logprobs or ()
    assert [one.text for one in scored if one is not None] == token_texts(front.text.tokenizer, completion.prompt_tokens)[1:]
    assert [one and [other.token - one.token for other in one.top] for one in scored[1:]] == [[0, 1]] * (len(scored) - 1)
    for index, choice in enumerate(completion.choices):
        found = choice.logprobs or ()
        assert tuple(one.token for one in found) == choice.tokens
        assert "".join(one.text for one in found) == choice.text
        assert [one.logprob for one in found] == pytest.approx([math.log(0.5)] * 12)
        assert tuple(one for output in outputs if output.index == index for one in output.logprobs or ()) == found
    assert [output.prompt_logprobs for output in outputs if output.prompt_logprobs] == [scored]


async def test_a_prompt_is_scored_without_a_new_token(echo: Echo) -> None:
    async with echo(max_model_len=64) as client:
        front = Frontend.of(client)
        completion = await front.complete([5] * 64, SamplingParams(max_tokens=0, prompt_logprobs=0))
    assert (completion.text, completion.usage.completion_tokens, completion.choices[0].finish) == ("", 0, "length")
    assert len(completion.prompt_logprobs or ()) == 64


async def test_leaving_early_with_logprobs_aborts(echo: Echo) -> None:
    async with echo() as client:
        stream = Frontend.of(client).generate("hello", SamplingParams(max_tokens=None, logprobs=0, prompt_logprobs=0))
        async with aclosing(stream):
            assert (await anext(stream)).prompt_logprobs
        while (await client.stats()).running:
            pass


def test_offline(model_folder: Path, echo: Echo) -> None:
    del model_folder
    with LLM.of(echo()) as llm:
        (completion,) = llm.generate(["one two"], SamplingParams(max_tokens=4, logprobs=1), use_tqdm=False)
    assert [one.text for one in completion.choices[0].logprobs or ()] == ["one", " two", "one", " two"]


def with_start_token(text: TextModel) -> Tokenizer:
    """The default tokenizer, made to put a start token before every text and an end token behind."""
    from tokenizers.processors import TemplateProcessing

    backend = tokenizers.Tokenizer.from_str(text.tokenizer._backend.to_str())
    ends = [("<|endoftext|>", 0), ("<|im_end|>", END)]
    backend.post_processor = TemplateProcessing(single="<|endoftext|> $A <|im_end|>", special_tokens=ends)
    return Tokenizer(backend, {})


@pytest.mark.parametrize("prompt", ["Hello 🙂 there", "<|im_end|>", " a<|im_end|>b", ""])
def test_an_echoed_text_is_the_text(text: TextModel, prompt: str) -> None:
    tokenizer = with_start_token(text)
    ids = tokenizer.encode(prompt)
    assert "".join(echo_texts(tokenizer, ids, prompt)) == prompt
    assert "".join(echo_texts(tokenizer, ids, ids)) == f"<|endoftext|>{prompt}<|im_end|>"
