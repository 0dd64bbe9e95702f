"""The bytes behind single ids: joined they are the text, also where no id is a whole character."""

from __future__ import annotations

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import decoders, models

from mqlab.text.tokenizer import Tokenizer


@settings(max_examples=60, deadline=None)
@given(st.text(st.characters(codec="utf-8"), max_size=40))
def test_joined_they_are_the_text(tokenizer: Tokenizer, text: str) -> None:
    ids = tokenizer.encode(text)
    joined = b"".join(map(tokenizer.raw, ids))
    # A few bytes have no entry, so that some characters lose a part: what is left is compared.
    assert joined.decode(errors="replace") == tokenizer.decode(ids, False)


def test_every_entry_has_bytes_and_each_byte_an_entry(tokenizer: Tokenizer) -> None:
    known = {tokenizer.raw(id) for id in range(tokenizer.vocab_size)}
    assert b"" not in known
    # The default vocabulary spells all bytes but those that no UTF-8 holds, and some that only rare scripts need.
    assert {bytes([byte]) for byte in range(0x20, 0x7F)} < known
    assert {bytes([byte]) for byte in range(0x80, 0xC0)} < known


@pytest.mark.parametrize("id", [49152, 10**9, 2**32, 2**70, -1])
def test_no_entry_has_no_bytes(tokenizer: Tokenizer, id: int) -> None:
    assert tokenizer.raw(id) == b""


def test_special_tokens_are_their_names(tokenizer: Tokenizer) -> None:
    assert [tokenizer.raw(id) for id in (0, 1, 2)] == [b"<|endoftext|>", b"<|im_start|>", b"<|im_end|>"]


def test_byte_fallback_and_leading_spaces() -> None:
    vocab = {"<0xF0>": 0, "▁a": 1, "b": 2, "▁": 3, "<0x0A>": 4}
    backend = tokenizers.Tokenizer(models.BPE(vocab=vocab, merges=[], byte_fallback=True))
    backend.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    tokenizer = Tokenizer(backend, {})
    assert [tokenizer.raw(id) for id in range(5)] == [b"\xf0", b" a", b"b", b" ", b"\n"]
