"""Ids to text as they arrive: the pieces are the whole, whole characters only, stop strings never shown by half."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import decoders, models

from mqlab.text.detokenizer import Detokenizer
from mqlab.text.tokenizer import Tokenizer
from mqlab.types import SamplingParams

SCRIPTS = [
    "🎉🎉🎉 👩‍👩‍👧‍👦 🏳️‍🌈",
    "Příliš žluťoučký kůň úpěl ďábelské ódy",
    "日本語のテキスト、中文字符，한국어 문장.",
    "שלום עולם مرحبا بالعالم",
    " each item\n - starts\n - with  a space ",
    "1 22 333 4444",
]

byte_ids = st.integers(17, 600)
"""Single bytes and short pieces: most sequences of them are no valid UTF-8."""
any_ids = st.integers(0, 49300)
some_cuts = st.one_of(st.just(list(range(1, 161))), st.lists(st.integers(1, 160)))
"""One id at a time, or by any numbers."""


def pieces_of(tokenizer: Tokenizer, ids: list[int], cuts: list[int], params: SamplingParams) -> tuple[list[str], str | None]:
    """Push ``ids`` cut at ``cuts``; the last push says that nothing follows."""
    detokenizer = Detokenizer(tokenizer, params)
    ends = sorted({0, *(cut for cut in cuts if cut < len(ids)), len(ids)})
    pieces = [detokenizer.push(ids[a:b], "length" if b == len(ids) else None) for a, b in pairwise(ends)]
    return pieces, detokenizer.stop_reason


@pytest.fixture(scope="session")
def windowed(model_folder: Path) -> Tokenizer:
    """The same tokenizer, its decoder in a wrapping that is not known to be byte-level: it is asked for the text of windows."""
    backend = tokenizers.Tokenizer.from_file(str(model_folder / "tokenizer.json"))
    backend.decoder = decoders.Sequence([decoders.ByteLevel()])
    return Tokenizer(backend, {})


@given(ids=st.lists(st.one_of(byte_ids, any_ids), min_size=1, max_size=120), cuts=some_cuts, skip=st.booleans())
@settings(max_examples=400, deadline=None)
def test_pieces_join_to_the_decoded_whole(tokenizer: Tokenizer, windowed: Tokenizer, ids: list[int], cuts: list[int], skip: bool) -> None:
    assert tokenizer.pieces() is not None and windowed.pieces() is None
    whole = tokenizer.decode(ids, skip)
    for one in (tokenizer, windowed):
        pieces, _ = pieces_of(one, ids, cuts, SamplingParams(skip_special_tokens=skip))
        assert "".join(pieces) == whole


def test_invalid_bytes_hold_nothing_back(tokenizer: Tokenizer) -> None:
    """The first byte of a character, then one that cannot follow it."""
    first, other = tokenizer.encode("é")[:1], tokenizer.encode("a")
    incomplete = next(i for i in range(17, 600) if tokenizer.raw(i) == b"\xe2")
    detokenizer = Detokenizer(tokenizer, SamplingParams())
    assert [detokenizer.push([incomplete]), detokenizer.push(other), detokenizer.push(first)] == ["", "\ufffda", "é"]


@pytest.mark.parametrize("text", SCRIPTS)
def test_only_whole_characters_one_id_at_a_time(tokenizer: Tokenizer, text: str) -> None:
    ids = tokenizer.encode(text * 5)
    pieces, _ = pieces_of(tokenizer, ids, list(range(len(ids))), SamplingParams())
    assert "\ufffd" not in "".join(pieces)
    assert "".join(pieces) == text * 5


def test_text_is_returned_as_soon_as_it_is_complete(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode(" Hello 🎉!")
    pieces, _ = pieces_of(tokenizer, ids, list(range(len(ids))), SamplingParams())
    assert pieces[0] == " Hello"
    assert pieces[-1] == "!"
    assert [piece for piece in pieces if piece] == [" Hello", " ", "🎉", "!"]


def test_a_replacement_mark_that_is_really_there_is_kept(tokenizer: Tokenizer) -> None:
    text = "a\ufffdb \ufffd"
    ids = tokenizer.encode(text)
    pieces, _ = pieces_of(tokenizer, ids, list(range(len(ids))), SamplingParams())
    assert "".join(pieces) == text


def test_an_incomplete_character_appears_at_the_end_only(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("a🎉")[:-1]
    detokenizer = Detokenizer(tokenizer, SamplingParams())
    assert detokenizer.push(ids) == "a"
    assert detokenizer.push([], "length") == "\ufffd"


def test_special_and_unknown_ids(tokenizer: Tokenizer) -> None:
    ids = [19556, 1, 49200, 905]
    for skip, text in ((True, "Hello world"), (False, "Hello<|im_start|> world")):
        pieces, _ = pieces_of(tokenizer, ids, [1, 2, 3], SamplingParams(skip_special_tokens=skip))
        assert "".join(pieces) == text


def test_the_id_that_ended_the_request_has_no_text(tokenizer: Tokenizer) -> None:
    hidden = Detokenizer(tokenizer, SamplingParams(skip_special_tokens=False))
    assert hidden.push([19556, 905, 2], "stop") == "Hello world"
    shown = Detokenizer(tokenizer, SamplingParams(skip_special_tokens=False, include_stop_str_in_output=True))
    assert shown.push([19556, 905, 2], "stop") == "Hello world<|im_end|>"


def test_work_per_id_does_not_grow(windowed: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    longest = 0
    decode = Tokenizer.decode

    def counted(self: Tokenizer, ids: list[int], skip_special_tokens: bool = True) -> str:
        nonlocal longest
        longest = max(longest, len(ids))
        return decode(self, ids, skip_special_tokens)

    monkeypatch.setattr(Tokenizer, "decode", counted)
    for text in (*SCRIPTS, "plain words "):
        ids = windowed.encode(text * 50)
        pieces_of(windowed, ids, list(range(len(ids))), SamplingParams())
    invalid = [130, 131, 140, 150] * 100
    pieces_of(windowed, invalid, list(range(400)), SamplingParams())
    assert 0 < longest <= 40


TALE = "Once upon a time, in the year 1024, a crab said: STOP! and 🎉 it stopped."


def stops_at_token_edges(tokenizer: Tokenizer) -> list[tuple[str, ...]]:
    """Stops that straddle tokens, sit inside one, equal one, begin with a space, and overlap."""
    words = [tokenizer.decode([i]) for i in tokenizer.encode(TALE)]
    inside = next(word for word in words if len(word) > 4)
    straddling = [a[-2:] + b[:2] for a, b in pairwise(words)]
    return [(s,) for s in (*straddling, *words, inside[1:4]) if s and "\ufffd" not in s] + [
        (" crab said", "ab sa"),
        ("ab", "crab"),
        ("🎉",),
    ]


def test_stop_strings_streamed_and_whole(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode(TALE)
    for stops in stops_at_token_edges(tokenizer):
        first = min(stops, key=TALE.index)
        before = TALE[: TALE.index(first)]
        for include in (False, True):
            params = SamplingParams(stop=stops, include_stop_str_in_output=include)
            for cuts in ([], list(range(len(ids)))):
                pieces, found = pieces_of(tokenizer, ids, cuts, params)
                assert ("".join(pieces), found) == (before + first * include, first)


@given(ids=st.lists(st.one_of(byte_ids, any_ids), min_size=1, max_size=60), cuts=some_cuts, data=st.data())
@settings(max_examples=200, deadline=None)
def test_stop_strings_of_random_text(tokenizer: Tokenizer, ids: list[int], cuts: list[int], data: st.DataObject) -> None:
    whole = tokenizer.decode(ids)
    begin = data.draw(st.integers(0, max(0, len(whole) - 1)))
    stop = whole[begin : begin + data.draw(st.integers(1, 12))] or "x"
    pieces, found = pieces_of(tokenizer, ids, cuts, SamplingParams(stop=(stop,)))
    assert "".join(pieces) == whole.partition(stop)[0]
    assert found == (stop if stop in whole else None)


def test_stop_strings_count_after_min_tokens(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("a b a b a b")
    for cuts in ([], [1, 2, 3, 4, 5]):
        pieces, found = pieces_of(tokenizer, ids, cuts, SamplingParams(stop=(" b",), min_tokens=3))
        assert ("".join(pieces), found) == ("a b a", " b")


def test_nothing_follows_a_stop_string(tokenizer: Tokenizer) -> None:
    detokenizer = Detokenizer(tokenizer, SamplingParams(stop=("world",)))
    assert detokenizer.push([19556, 905]) == "Hello "
    assert detokenizer.push([19556], "abort") == ""
    assert detokenizer.stop_reason == "world"


@pytest.fixture(scope="session")
def byte_fallback() -> Tokenizer:
    """A tokenizer of Llama 2's kind: word pieces with a mark for the space, and single bytes for all else."""
    words = ["▁", "▁a", "a", "b", "▁bc"]
    vocab = {f"<0x{byte:02X}>": byte for byte in range(256)} | {word: 256 + i for i, word in enumerate(words)}
    backend = tokenizers.Tokenizer(models.BPE(vocab=vocab, merges=[], byte_fallback=True))
    backend.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    return Tokenizer(backend, {})


@given(parts=st.lists(st.one_of(st.integers(256, 260), st.sampled_from("é日🎉")), min_size=1, max_size=40), cuts=some_cuts)
@settings(deadline=None)
def test_byte_fallback(byte_fallback: Tokenizer, parts: list[int | str], cuts: list[int]) -> None:
    ids = [i for part in parts for i in ([part] if isinstance(part, int) else part.encode())]
    pieces, _ = pieces_of(byte_fallback, ids, cuts, SamplingParams())
    assert "".join(pieces) == byte_fallback.decode(ids)
    assert all("\ufffd" not in piece for piece in pieces)


@given(parts=st.lists(st.one_of(st.integers(256, 260), st.sampled_from(["é", "🎉", 0xFF])), min_size=1, max_size=20), cuts=some_cuts)
@settings(deadline=None)
def test_byte_fallback_loses_no_text_around_invalid_bytes(byte_fallback: Tokenizer, parts: list[int | str], cuts: list[int]) -> None:
    """Which characters of an invalid run are shown is the run's own business; spaces and words around it are the text's."""
    ids = [i for part in parts for i in ([part] if isinstance(part, int) else part.encode())]
    pieces, _ = pieces_of(byte_fallback, ids, cuts, SamplingParams())
    assert _ascii("".join(pieces)) == _ascii(byte_fallback.decode(ids))


def _ascii(text: str) -> str:
    return "".join(character for character in text if ord(character) < 128)


@pytest.mark.parametrize("character", ["🎉", "日", "é"])
def test_byte_fallback_shows_each_character_of_a_long_run(byte_fallback: Tokenizer, character: str) -> None:
    ids = list((character * 40).encode())
    detokenizer = Detokenizer(byte_fallback, SamplingParams())
    held = [""] * (len(ids) // 40 - 1)
    assert [detokenizer.push([i]) for i in ids] == [*held, character] * 40
    assert detokenizer.push([0xF0], "length") == "\ufffd"


def test_byte_fallback_with_every_push_ending_inside_a_character(byte_fallback: Tokenizer) -> None:
    ids = list(("🎉" * 40).encode())
    pieces, _ = pieces_of(byte_fallback, ids, list(range(2, 160, 4)), SamplingParams())
    assert pieces == ["", *["🎉"] * 40]


def test_byte_fallback_gives_up_on_what_cannot_be_a_character(byte_fallback: Tokenizer) -> None:
    detokenizer = Detokenizer(byte_fallback, SamplingParams())
    shown = [detokenizer.push([0xFF]) for _ in range(400)]
    assert "".join(shown) == "\ufffd" * 400
    assert max(map(len, shown)) == 4
