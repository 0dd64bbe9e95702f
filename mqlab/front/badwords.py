"""Words that a text must not hold, as the token sequences that spell them."""

from __future__ import annotations

from itertools import chain

import msgspec

from mqlab.errors import InvalidRequest
from mqlab.text.tokenizer import Tokenizer
from mqlab.types import SamplingParams

MAX_WORDS = 1024
MAX_CHARACTERS = 1024
"""Of one word."""


def with_bad_word_ids(params: SamplingParams, tokenizer: Tokenizer) -> SamplingParams:
    """The parameters with their bad words added to ``bad_word_ids``, each as it is spelled at a text's beginning and after a space.

    A word is held off as these tokens, not as letters: in another capitalisation, or pieced together otherwise, it may appear.

    Source: vLLM (SamplingParams.update_from_tokenizer); unlike there, spellings of different lengths are all kept.

    Raises:
        InvalidRequest: a word has no tokens; it is too long; there are too many.
    """
    if not params.bad_words:
        return params
    if len(params.bad_words) > MAX_WORDS:
        raise InvalidRequest(f"bad_words holds {len(params.bad_words)}; at most {MAX_WORDS} are looked for: name fewer")
    spelled = chain.from_iterable(_spellings(word, tokenizer) for word in params.bad_words)
    return msgspec.structs.replace(params, bad_word_ids=tuple(dict.fromkeys((*params.bad_word_ids, *spelled))))


def _spellings(word: str, tokenizer: Tokenizer) -> list[tuple[int, ...]]:
    if len(word) > MAX_CHARACTERS:
        raise InvalidRequest(f"bad_words holds one of {len(word)} characters; at most {MAX_CHARACTERS} are looked for: name a part of it")
    bare = word.lstrip(" ")
    texts = (bare, f" {bare}") if bare else (word,)
    found = [ids for text in texts if (ids := tuple(tokenizer.encode(text, add_special_tokens=False)))]
    if not found:
        raise InvalidRequest(f"bad_words holds {word!r}, which has no tokens; leave it out")
    return found
