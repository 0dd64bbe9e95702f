"""Packed logprobs become tokens with text."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate

from mqlab.logprobs import Logprobs
from mqlab.text.detokenizer import make_decoder
from mqlab.text.tokenizer import Tokenizer
from mqlab.types import TokenLogprob


def token_logprobs(tokenizer: Tokenizer, packed: Logprobs | None, texts: Sequence[str]) -> tuple[TokenLogprob, ...]:
    """One for each of ``texts``, which are what the tokens add to the text; what is packed beyond those is left out."""
    if packed is None:
        return ()
    rows = zip(packed.rows(), packed.rank_list(), texts, strict=False)
    return tuple(_scored(tokenizer, row, rank, text) for row, rank, text in rows)


def prompt_logprobs(tokenizer: Tokenizer, prompt: Sequence[int], packed: Logprobs | None) -> tuple[TokenLogprob | None, ...]:
    """One for each token of the prompt, special tokens by their name; None for the first, which nothing predicts."""
    return (None, *token_logprobs(tokenizer, packed, token_texts(tokenizer, prompt)[1:]))


def token_texts(tokenizer: Tokenizer, ids: Iterable[int]) -> list[str]:
    """What each token adds to the text of all of them, special tokens shown: of several that make one character the last has it."""
    decoder = make_decoder(tokenizer, skip_special_tokens=False)
    texts = [decoder.push([token]) for token in ids]
    texts[-1:] = ["".join((*texts[-1:], decoder.flush()))]
    return texts


def echo_texts(tokenizer: Tokenizer, ids: Sequence[int], prompt: object) -> list[str]:
    """What each token adds to the prompt as it was given: where that is text, start and end tokens around it add nothing."""
    texts = token_texts(tokenizer, ids)
    begin = "".join(texts).find(prompt) if isinstance(prompt, str) else -1
    if not isinstance(prompt, str) or begin < 0:
        return texts
    ends = list(accumulate(map(len, texts)))
    within = (begin < end and end - len(text) < begin + len(prompt) for text, end in zip(texts, ends, strict=True))
    return [text if shown else "" for text, shown in zip(texts, within, strict=True)]


def _scored(tokenizer: Tokenizer, row: list[tuple[int, float]], rank: int, text: str) -> TokenLogprob:
    (token, logprob), *others = row
    raw = tokenizer.raw(token)
    if raw == b" " + text.encode():  # the first token of a text, which loses its space under some tokenizers
        raw = raw[1:]
    own = TokenLogprob(token, text, raw, logprob, rank)
    top = [_alone(tokenizer, other, value, place) if other != token else own for place, (other, value) in enumerate(others, 1)]
    return TokenLogprob(token, text, raw, logprob, rank, tuple(top))


def _alone(tokenizer: Tokenizer, token: int, logprob: float, rank: int) -> TokenLogprob:
    raw = tokenizer.raw(token)
    try:
        text = raw.decode()
    except UnicodeDecodeError:
        text = ""
    return TokenLogprob(token, text, raw, logprob, rank)
