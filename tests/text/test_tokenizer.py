"""Text to ids and back with the default model's tokenizer."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
import regex
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import decoders, models, processors

from mqlab.errors import ModelError
from mqlab.text.tokenizer import Tokenizer

TEXTS = [
    "The year 2024 had 366 days, 3.14159 is not 22/7, and 007 is 00 7.",
    "def f(xs: list[int]) -> int:\n    return sum(x ** 2 for x in xs if x % 3 == 0)  # 1_000\n",
    "Příliš žluťoučký kůň úpěl ďábelské ódy — façade, naïve, Größe, œuvre",
    "👩‍👩‍👧‍👦 🎉🎉🎉 🏳️‍🌈 ok",
    "日本語のテキスト、中文字符，한국어 문장.",
    "שלום עולם مرحبا بالعالم",
    "  leading,   inner\t\ttabs and trailing spaces   \n\n\n",
    "it's I'll we've they're I'd can't 'quoted'",
    "½ ² ٣ Ⅳ 一二三 １２",
    "<|im_start|>user\nnot a turn<|im_end|> <|endoftext|> <|im_start |>",
    "",
]

PIECES = regex.compile(r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+")


class PlainBpe:
    """Byte-level BPE in its plainest form, as llama.cpp describes the "smollm" pre-tokenizer: digits apart, then GPT-2's pieces."""

    def __init__(self, folder: Path) -> None:
        model = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))["model"]
        self.vocab: dict[str, int] = model["vocab"]
        self.ranks = {tuple(merge): rank for rank, merge in enumerate(model["merges"])}
        self.alphabet = byte_alphabet()

    def encode(self, text: str) -> list[int]:
        runs = [run for run in regex.split(r"(\p{N})", text) if run]
        return [i for run in runs for piece in PIECES.findall(run) for i in self.merge(piece)]

    def merge(self, piece: str) -> list[int]:
        parts = [self.alphabet[byte] for byte in piece.encode() if self.alphabet[byte] in self.vocab]
        while len(parts) > 1:
            rank, at = min((self.ranks.get(pair, 1 << 30), i) for i, pair in enumerate(itertools.pairwise(parts)))
            if rank == 1 << 30:
                break
            parts[at : at + 2] = ["".join(parts[at : at + 2])]
        return [self.vocab[part] for part in parts]


def byte_alphabet() -> list[str]:
    """GPT-2's printable stand-ins for the 256 bytes."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    return [chr(byte) if byte in printable else chr(256 + others.index(byte)) for byte in range(256)]


@pytest.fixture(scope="session")
def plain_bpe(model_folder: Path) -> PlainBpe:
    return PlainBpe(model_folder)


@pytest.mark.parametrize("text", TEXTS)
def test_ids_equal_transformers(tokenizer: Tokenizer, reference: Any, text: str) -> None:
    assert tokenizer.encode(text) == reference(text).input_ids
    assert tokenizer.encode(text, add_special_tokens=False) == reference(text, add_special_tokens=False).input_ids


def test_ids_equal_the_published_ones(tokenizer: Tokenizer) -> None:
    assert tokenizer.encode("Hello world") == [19556, 905]
    assert tokenizer.encode("In 2024,") == [788, 216, 34, 32, 34, 36, 28]
    prompt = "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
    published = [1, 9690, 198, 2683, 359, 253, 5356, 5646, 11173, 3365, 3511, 308, 34519, 28, 7018, 411, 407, 19712, 8182, 2, 198]
    assert tokenizer.encode(prompt) == published


@given(text=st.one_of(st.text(max_size=60), st.text(alphabet="ab 's.,\n\t12٣é日🎉", max_size=60)))
@settings(max_examples=300, deadline=None)
def test_ids_equal_a_plain_implementation(tokenizer: Tokenizer, plain_bpe: PlainBpe, text: str) -> None:
    assert tokenizer.encode(text) == plain_bpe.encode(text)
    if all(plain_bpe.alphabet[byte] in plain_bpe.vocab for byte in text.encode()):
        assert tokenizer.decode(tokenizer.encode(text)) == text


def test_bytes_that_the_vocabulary_lacks_are_dropped(tokenizer: Tokenizer, reference: Any) -> None:
    assert tokenizer.encode("a\U00040000b") == reference("a\U00040000b").input_ids
    assert "\xf1" not in tokenizer.decode(tokenizer.encode("a\U00040000b"))


def test_special_tokens_stay_whole_and_are_hidden_or_shown(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("a<|im_end|>b")
    assert ids == [81, 2, 82]
    assert tokenizer.decode(ids) == "ab"
    assert tokenizer.decode(ids, skip_special_tokens=False) == "a<|im_end|>b"
    assert tokenizer.special_tokens == {
        "bos_token": "<|im_start|>",
        "eos_token": "<|im_end|>",
        "unk_token": "<|endoftext|>",
        "pad_token": "<|im_end|>",
    }


def test_known_ids(tokenizer: Tokenizer) -> None:
    assert tokenizer.vocab_size == 49152
    assert [tokenizer.encode(token) for token in ("<|im_start|>", "<|im_end|>")] == [[1], [2]]


@pytest.mark.parametrize("beyond", [49152, 49215, 2**32 - 1, 2**40, -1])
def test_ids_without_an_entry_decode_to_nothing(tokenizer: Tokenizer, beyond: int) -> None:
    assert tokenizer.decode([beyond]) == ""
    assert tokenizer.decode([19556, beyond, 905]) == "Hello world"


def test_truncation_and_padding_of_the_file_do_not_apply(tmp_path: Path, model_folder: Path) -> None:
    saved = tokenizers.Tokenizer.from_file(str(model_folder / "tokenizer.json"))
    saved.enable_truncation(2)
    saved.enable_padding(length=8)
    saved.save(str(tmp_path / "tokenizer.json"))
    assert Tokenizer.load(tmp_path).encode("one two three") == Tokenizer.load(model_folder).encode("one two three")


def test_a_start_token_is_added_only_where_asked(tmp_path: Path) -> None:
    backend = tokenizers.Tokenizer(models.BPE(vocab={"<s>": 0, "a": 1}, merges=[]))
    backend.add_special_tokens(["<s>"])
    backend.decoder = decoders.Fuse()
    backend.post_processor = processors.TemplateProcessing("<s> $A", None, [("<s>", 0)])
    backend.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"bos_token": {"content": "<s>", "lstrip": False}, "eos_token": None}))
    tokenizer = Tokenizer.load(tmp_path)
    assert tokenizer.encode("a") == [0, 1]
    assert tokenizer.encode("<s>a", add_special_tokens=False) == [0, 1]
    assert tokenizer.special_tokens == {"bos_token": "<s>"}


def test_missing_and_corrupt_files_are_named(tmp_path: Path, model_folder: Path) -> None:
    with pytest.raises(ModelError, match=r"holds no tokenizer\.json"):
        Tokenizer.load(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(ModelError, match=r"tokenizer\.json cannot be read"):
        Tokenizer.load(tmp_path)
    (tmp_path / "tokenizer.json").write_bytes((model_folder / "tokenizer.json").read_bytes())
    for content, complaint in (("{", "cannot be read"), ("[]", "holds a list")):
        (tmp_path / "tokenizer_config.json").write_text(content)
        with pytest.raises(ModelError, match=rf"tokenizer_config\.json {complaint}"):
            Tokenizer.load(tmp_path)
