"""One choice, read from deltas however they are cut."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mqlab.front.choice import ChoiceReader, Tally
from mqlab.front.collect import ChoiceCollector
from mqlab.front.textmodel import TextModel
from mqlab.logprobs import Logprobs
from mqlab.types import Delta, Finish, Output, RequestStats, SamplingParams, Usage

TALK = " Příliš žluťoučký kůň 🙂🙂 said: 42 hellos, 你好 世界 and שלום, one by one. END of it."


def cut(tokens: list[int], cuts: list[int], finish: Finish) -> list[Delta]:
    """``tokens`` as deltas that end at ``cuts``; the last one has ``finish``."""
    edges = sorted({0, len(tokens), *(min(one, len(tokens)) for one in cuts)})
    deltas = [Delta("r", tokens[a:b]) for a, b in pairwise(edges)]
    deltas[-1].finish = finish
    return deltas


def reader(text: TextModel, params: SamplingParams) -> ChoiceReader:
    return ChoiceReader("r", 0, text.tokenizer, params, Tally(3, 1))


def read(text: TextModel, params: SamplingParams, deltas: list[Delta]) -> list[Output]:
    one = reader(text, params)
    outputs = []
    for delta in deltas:
        outputs.append(one.read(delta))
        if outputs[-1].finish is not None:
            break
    return outputs


def summary(outputs: list[Output]) -> tuple[str, tuple[int, ...], object, object, object]:
    last = outputs[-1]
    tokens = tuple(token for output in outputs for token in output.tokens)
    return "".join(output.text for output in outputs), tokens, last.finish, last.stop_reason, last.usage


@settings(max_examples=60, deadline=None)
@given(
    cuts=st.lists(st.integers(1, 80), max_size=30),
    stop=st.sampled_from([(), ("42",), ("ůň 🙂", "🙂 s"), (" by one. E",), ("never",), ("D of",)]),
)
def test_cuts_make_no_difference(text: TextModel, cuts: list[int], stop: tuple[str, ...]) -> None:
    tokens = text.tokenizer.encode(TALK)
    params = SamplingParams(stop=stop)
    whole = summary(read(text, params, [Delta("r", tokens, "length")]))
    deltas = cut(tokens, cuts, "length")
    assert summary(read(text, params, deltas)) == whole
    collector = ChoiceCollector(reader(text, params))
    choice = next(done for delta in deltas if (done := collector.add(delta)) is not None)
    assert (choice.text, choice.tokens, choice.finish, choice.stop_reason) == whole[:4]


@pytest.mark.parametrize("start", range(0, 60, 3))
@pytest.mark.parametrize("length", [1, 2, 7])
def test_any_piece_of_the_text_stops_it_right_before(text: TextModel, start: int, length: int) -> None:
    """Within a token, across tokens, a whole token, with a leading space: wherever the piece happens to lie."""
    tokens = text.tokenizer.encode(TALK)
    stop = TALK[start : start + length]
    streamed, reported, finish, reason, usage = summary(read(text, SamplingParams(stop=(stop,)), cut(tokens, list(range(80)), "length")))
    assert streamed == TALK[: TALK.index(stop)]
    assert (finish, reason) == ("stop", stop)
    assert usage == Usage(3, len(reported))
    assert stop in text.tokenizer.decode(reported)
    assert stop not in text.tokenizer.decode(reported[:-1])


def test_nothing_that_may_begin_a_stop_string_is_shown_early(text: TextModel) -> None:
    tokens = text.tokenizer.encode("one two three four")
    outputs = read(text, SamplingParams(stop=("two three four five",)), cut(tokens, list(range(20)), "length"))
    assert "".join(output.text for output in outputs[:-1]) == "one "
    assert outputs[-1].text == "two three four"


def test_an_included_stop_string_ends_the_text(text: TextModel) -> None:
    tokens = text.tokenizer.encode(TALK)
    params = SamplingParams(stop=("42 hell",), include_stop_str_in_output=True)
    assert summary(read(text, params, cut(tokens, [], "length")))[0] == TALK[: TALK.index("os, ")]


def test_characters_arrive_whole(text: TextModel) -> None:
    tokens = text.tokenizer.encode(TALK)
    outputs = read(text, SamplingParams(), cut(tokens, list(range(80)), "length"))
    assert all("\ufffd" not in output.text for output in outputs)
    assert "".join(output.text for output in outputs) == TALK


def test_the_end_token_is_reported_without_text(text: TextModel) -> None:
    output = reader(text, SamplingParams()).read(Delta("r", [*text.tokenizer.encode("hi"), 2], "stop"))
    assert (output.text, output.tokens[-1], output.stop_reason) == ("hi", 2, None)


def test_a_stop_token_id_keeps_its_reason(text: TextModel) -> None:
    output = reader(text, SamplingParams(stop=("zz",))).read(Delta("r", [*text.tokenizer.encode("hi"), 30], "stop", 30))
    assert (output.text, output.finish, output.stop_reason) == ("hi", "stop", 30)


def test_an_abort_without_tokens_returns_what_was_held_back(text: TextModel) -> None:
    one = reader(text, SamplingParams(stop=("hi there",)))
    assert one.read(Delta("r", text.tokenizer.encode("hi"))).text == ""
    last = one.read(Delta("r", [], "abort"))
    assert (last.text, last.finish, last.tokens) == ("hi", "abort", ())


def test_only_the_last_choice_gets_the_usage() -> None:
    tally = Tally(5, 2)
    assert tally.end(3) is None
    assert tally.end(4) == Usage(5, 7) == tally.usage


def test_what_a_choice_has_cost_comes_with_its_end(text: TextModel) -> None:
    prompt, whole = RequestStats(1.0, 2.0, 0.0, 5), RequestStats(1.0, 2.0, 3.0, 5)
    words = text.tokenizer.encode("one two three")
    deltas = [Delta("r", words[:1], stats=prompt), Delta("r", words[1:-1]), Delta("r", words[-1:], "length", stats=whole)]
    for stop, told in (((), whole), (("three",), whole), (("two",), prompt)):  # the core's end is not waited for
        first, *_, last = read(text, SamplingParams(stop=stop), deltas)
        assert (first.stats, last.stats) == (None, told)
        assert last.usage is not None and last.usage.cached_tokens == min(3, 5)


def test_of_several_choices_the_first_tells_what_was_cached_before() -> None:
    for order in ((0, 48, 48), (48, 0, 48)):
        tally = Tally(50, 3)
        usages = [tally.end(1, RequestStats(0.0, 0.0, 0.0, cached)) for cached in order]
        assert usages[-1] is not None and usages[-1].cached_tokens == 0


def test_usages_are_compared_by_their_tokens() -> None:
    assert len({Usage(1, 2), Usage(1, 2, 1), Usage(1, 3), Usage(2, 2)}) == 3
    assert Usage(1, 2) != (1, 2)


def test_text_that_a_layout_has_searched_is_taken_as_it_is(text: TextModel) -> None:
    """Nothing is decoded: these ids are no words of it."""
    params = SamplingParams(stop=("END",))
    deltas = [Delta("r", [5, 6], text="one "), Delta("r", [7], "stop", "END", text="two ")]
    assert summary(read(text, params, deltas)) == ("one two ", (5, 6, 7), "stop", "END", Usage(3, 3))
    collector = ChoiceCollector(reader(text, params))
    choice = [collector.add(delta) for delta in deltas][-1]
    assert choice is not None and (choice.text, choice.stop_reason) == ("one two ", "END")


def test_logprobs_want_each_tokens_own_text_whoever_has_decoded(text: TextModel) -> None:
    tokens = text.tokenizer.encode("one two")
    rows = np.zeros((len(tokens), 1))
    logprobs = Logprobs.pack(np.array(tokens, np.int32)[:, None], rows.astype(np.float32), np.ones(len(tokens), np.int32))
    (output,) = read(text, SamplingParams(logprobs=0), [Delta("r", tokens, "length", text="something else", logprobs=logprobs)])
    assert output.text == "one two" and output.logprobs is not None
    assert "".join(one.text for one in output.logprobs) == "one two"
