"""How a finished request shows itself."""

from __future__ import annotations

from mqlab.types import Choice, Completion, TokenLogprob, Usage


def completion(*texts: str) -> Completion:
    logprobs = (TokenLogprob(token=1, text="a", raw=b"a", logprob=-1.0, rank=1),) * 50
    choices = (Choice(index=i, text=text, tokens=(1,) * 50, finish="length", logprobs=logprobs) for i, text in enumerate(texts))
    return Completion(
        id="x", prompt_tokens=(1, 2, 3), choices=tuple(choices), usage=Usage(prompt_tokens=3, completion_tokens=50 * len(texts))
    )


def test_it_shows_the_text_and_not_its_logprobs() -> None:
    assert repr(completion(" Paris.\n")) == r"<Completion: ' Paris.\n' (length); 3 + 50 tokens>"
    assert repr(completion("one", "two")) == "<Completion: 'one' (length), 'two' (length); 3 + 100 tokens>"


def test_a_long_text_is_cut() -> None:
    shown = repr(completion("a" * 5000))
    assert len(shown) < 300 and "a…'" in shown
