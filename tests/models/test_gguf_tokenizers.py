"""Case C80: a tokenizer that went through a GGUF file gives the ids of the original."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from inspect import signature
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
import transformers
from awkward_texts import awkward_texts
from hf_gguf import Vocabulary, write_hf_gguf
from tiny_gguf import CONFIG, tiny_weights
from tokenizers import Regex, decoders, models, pre_tokenizers, trainers
from transformers.convert_slow_tokenizer import TikTokenConverter
from transformers.tokenization_utils_base import generate_merges

from mqlab.models.gguf import convert
from mqlab.text.tokenizer import Tokenizer

CONTROL, USER_DEFINED, UNUSED, BYTE = 3, 4, 5, 6
WHOLE = [("<|end|>", CONTROL), ("<|start|>", CONTROL), ("<tag>", USER_DEFINED)]
LLAMA3: str = signature(TikTokenConverter).parameters["pattern"].default
TEKKEN = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+"
    r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def convert_vocabulary(tmp_path: Path, vocabulary: Vocabulary) -> Tokenizer:
    """Through a file of a tiny model with this vocabulary."""
    size = len(vocabulary.tokens)
    weights = tiny_weights() | {"model.embed_tokens.weight": np.zeros((size, CONFIG["hidden_size"]), np.float32)}
    source = write_hf_gguf(tmp_path / "tiny.gguf", "llama", CONFIG | {"vocab_size": size}, weights, vocabulary=vocabulary)
    folder = tmp_path / "folder"
    folder.mkdir()
    convert(source, folder, progress=False)
    return Tokenizer.load(folder)


def train(steps: list[Any], size: int = 700) -> tuple[dict[str, int], list[tuple[str, str]]]:
    """Vocabulary and merges of a byte-level BPE learnt from the very texts."""
    learner = tokenizers.Tokenizer(models.BPE())
    learner.pre_tokenizer = pre_tokenizers.Sequence(steps)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=size, initial_alphabet=alphabet, show_progress=False, special_tokens=[t for t, _ in WHOLE])
    learner.train_from_iterator(awkward_texts() * 3, trainer)
    model = json.loads(learner.to_str())["model"]
    return model["vocab"], [tuple(merge) for merge in model["merges"]]


def whole(backend: tokenizers.Tokenizer) -> tokenizers.Tokenizer:
    for text, kind in WHOLE:
        token = tokenizers.AddedToken(text, normalized=False, special=kind == CONTROL)
        (backend.add_special_tokens if kind == CONTROL else backend.add_tokens)([token])
    return backend


def assembled(*steps: Any, **options: Any) -> Callable[..., tokenizers.Tokenizer]:
    """A tokenizer whose published tokenizer.json has these steps."""

    def build(vocab: dict[str, int], merges: list[tuple[str, str]]) -> tokenizers.Tokenizer:
        backend = tokenizers.Tokenizer(models.BPE(vocab=vocab, merges=merges, **options))
        backend.pre_tokenizer = pre_tokenizers.Sequence(list(steps))
        backend.decoder = decoders.ByteLevel()
        return backend

    return build


def of_class(name: str) -> Callable[..., tokenizers.Tokenizer]:
    """A tokenizer class of transformers."""

    def build(vocab: dict[str, int], merges: list[tuple[str, str]]) -> tokenizers.Tokenizer:
        roles = dict.fromkeys(("unk_token", "bos_token", "eos_token", "pad_token"), "<|end|>")
        return getattr(transformers, name)(vocab=vocab, merges=merges, **roles).backend_tokenizer

    return build


def split(pattern: str) -> Any:
    return pre_tokenizers.Split(Regex(pattern), "isolated")


DIGITS = pre_tokenizers.Digits(individual_digits=True)
GPT2 = pre_tokenizers.ByteLevel(add_prefix_space=False)
BYTES = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)

ORIGINALS: dict[str, Callable[..., tokenizers.Tokenizer]] = {
    "gpt-2": of_class("GPT2Tokenizer"),
    "smollm": assembled(DIGITS, GPT2),
    "starcoder": assembled(DIGITS, GPT2),
    "refact": assembled(DIGITS, GPT2),
    "olmo": of_class("GPTNeoXTokenizer"),
    "llama-bpe": assembled(split(LLAMA3), BYTES, ignore_merges=True),
    "qwen2": of_class("Qwen2Tokenizer"),
    "tekken": assembled(split(TEKKEN), BYTES, ignore_merges=True),
    "deepseek-coder": assembled(split(r"[\r\n]"), split(r"\s?\p{L}+"), split(r"\s?\p{P}+"), split("[一-龥ࠀ-一가-퟿]+"), DIGITS, BYTES),
}


def byte_level_vocabulary(vocab: dict[str, int], merges: list[tuple[str, str]], pre: str, padding: int = 0) -> Vocabulary:
    tokens = sorted(vocab, key=vocab.__getitem__)
    kinds = [dict(WHOLE).get(token, 1) for token in tokens]
    padded = [f"[PAD{i}]" for i in range(padding)]
    return Vocabulary(tokens=tokens + padded, kinds=kinds + [UNUSED] * padding, pre=pre, merges=[" ".join(merge) for merge in merges])


def assert_same(original: tokenizers.Tokenizer, converted: Tokenizer, texts: list[str]) -> None:
    assert len(texts) >= 200
    for text in texts:
        expected = original.encode(text, add_special_tokens=False).ids
        got = converted.encode(text, add_special_tokens=False)
        assert got == expected, (text, [converted.decode([i], False) for i in got])
        assert converted.decode(got, False) == original.decode(expected, skip_special_tokens=False)


@pytest.mark.parametrize("pre", ORIGINALS)
def test_byte_level_ids_are_those_of_the_original(tmp_path: Path, pre: str) -> None:
    vocab, merges = train([GPT2])  # one that all of them can use; words that they cut otherwise make the difference
    original = whole(ORIGINALS[pre](vocab, merges))
    assert_same(original, convert_vocabulary(tmp_path, byte_level_vocabulary(vocab, merges, pre)), awkward_texts())


def test_pre_tokenizers_differ_on_these_texts() -> None:
    vocab, merges = train([GPT2])
    ids = {pre: str([whole(build(vocab, merges)).encode(text).ids for text in awkward_texts()]) for pre, build in ORIGINALS.items()}
    assert len(set(ids.values())) == len(ORIGINALS) - 2  # smollm, starcoder and refact are one


def test_the_default_pre_tokenizer_cuts_runs_of_digits_into_threes(tmp_path: Path) -> None:
    vocab, merges = train([GPT2])
    converted = convert_vocabulary(tmp_path, byte_level_vocabulary(vocab, merges, "default"))
    assert converted.encode("1234567") == [token for part in ("123", "456", "7") for token in converted.encode(part)]


def test_padding_of_the_vocabulary_has_no_text(tmp_path: Path) -> None:
    vocab, merges = train([GPT2], 300)
    converted = convert_vocabulary(tmp_path, byte_level_vocabulary(vocab, merges, "qwen2", padding=20))
    assert converted.vocab_size == len(vocab)
    assert converted.decode([len(vocab) + 3], False) == ""


def test_the_default_models_ids_survive(tmp_path: Path, model_folder: Path) -> None:
    original = json.loads((model_folder / "tokenizer.json").read_text())
    vocab, merges = original["model"]["vocab"], original["model"]["merges"]
    tokens = sorted(vocab, key=vocab.__getitem__)
    special = {token["content"] for token in original["added_tokens"]}
    kinds = [CONTROL if token in special else 1 for token in tokens]
    vocabulary = Vocabulary(tokens=tokens, kinds=kinds, pre="smollm", merges=[" ".join(merge) for merge in merges])
    backend = tokenizers.Tokenizer.from_file(str(model_folder / "tokenizer.json"))
    assert_same(backend, convert_vocabulary(tmp_path, vocabulary), awkward_texts())


Pieces = dict[str, float]
"""Scores of SentencePiece pieces by text."""


def spm_pieces(size: int = 700) -> Pieces:
    """Learnt on words that begin with the space mark, as SentencePiece learns them; a later merge has a lower score."""
    learner = tokenizers.Tokenizer(models.BPE())
    learner.pre_tokenizer = pre_tokenizers.Metaspace()
    trainer = trainers.BpeTrainer(vocab_size=size, show_progress=False)
    common = ["".join(char for char in text if " " <= char < "\u0400" or char in "\n\t") for text in awkward_texts()]  # the rest are bytes
    learner.train_from_iterator(common * 3, trainer)
    model = json.loads(learner.to_str())["model"]
    joined = [left + right for left, right in model["merges"]]
    alphabet = sorted(set(model["vocab"]) - set(joined))
    return {piece: -float(rank) for rank, piece in enumerate(dict.fromkeys(joined + alphabet))}


def spm_vocabulary(pieces: Pieces, more: list[tuple[str, int, float]], **options: Any) -> Vocabulary:
    head = [("<unk>", 2, 0.0), ("<s>", CONTROL, 0.0), ("</s>", CONTROL, 0.0), *((f"<0x{i:02X}>", BYTE, 0.0) for i in range(256))]
    rows = [*head, *((piece, 1, score) for piece, score in pieces.items()), *more]
    tokens, kinds, scores = zip(*rows, strict=True)
    given = {"bos_token_id": 1, "eos_token_id": 2, "unk_token_id": 0, **options}
    return Vocabulary(tokens=tokens, kinds=kinds, scores=scores, model="llama", pre="default", options=given)


def spm_reference(text: str, scores: Pieces, ids: dict[str, int]) -> list[int]:
    """SentencePiece's rule: of all neighbours that join to a piece, join those with the best score, the leftmost of equals."""
    parts = list(text)
    while joins := [(-scores[parts[i] + parts[i + 1]], i) for i in range(len(parts) - 1) if parts[i] + parts[i + 1] in scores]:
        at = min(joins)[1]
        parts[at : at + 2] = [parts[at] + parts[at + 1]]
    return [i for part in parts for i in ([ids[part]] if part in ids else [ids[f"<0x{byte:02X}>"] for byte in part.encode()])]


@pytest.mark.parametrize(("kind", "end"), [("llama-bpe", 0), ("spm", 2)])
def test_transformers_reads_the_folder_alike(tmp_path: Path, kind: str, end: int) -> None:
    """Start and end tokens included."""
    asked = {"bos_token_id": 1, "eos_token_id": end, "add_bos_token": True, "add_eos_token": True}
    learnt = byte_level_vocabulary(*train([GPT2]), kind) if kind == "llama-bpe" else spm_vocabulary(spm_pieces(), [])
    converted = convert_vocabulary(tmp_path, replace(learnt, options=asked))
    theirs: Any = transformers.AutoTokenizer.from_pretrained(tmp_path / "folder")
    for text in awkward_texts():
        ids = converted.encode(text)
        assert theirs(text)["input_ids"] == ids
        assert (ids[0], ids[-1]) == (1, end)
        assert theirs.decode(ids, skip_special_tokens=True) == converted.decode(ids)


@pytest.mark.parametrize("prefix", [True, False])
def test_sentencepiece_ids_follow_its_rule(tmp_path: Path, prefix: bool) -> None:
    pieces = spm_pieces()
    vocabulary = spm_vocabulary(pieces, [], add_space_prefix=prefix)
    ids = {token: i for i, token in enumerate(vocabulary.tokens)}
    converted = convert_vocabulary(tmp_path, vocabulary)
    texts = awkward_texts()
    for text in texts:
        marked = ("▁" * (prefix and text != "") + text).replace(" ", "▁")
        assert converted.encode(text, add_special_tokens=False) == spm_reference(marked, pieces, ids), text
        assert converted.decode(converted.encode(text)) == text.replace("▁", " ")
    assert converted.encode("a")[0] == 1
    assert converted.encode("</s>x", add_special_tokens=False)[0] == 2


def test_sentencepiece_ids_are_those_of_the_class_of_llama(tmp_path: Path) -> None:
    vocabulary = spm_vocabulary(pieces := spm_pieces(), [])
    vocab = {token: i for i, token in enumerate(vocabulary.tokens)}
    merges: Any = generate_merges(vocab, pieces)
    original = transformers.LlamaTokenizer(vocab=vocab, merges=merges).backend_tokenizer
    # that class puts no second space before text that begins with one, which Llama 2's own tokenizer.json does
    assert_same(original, convert_vocabulary(tmp_path, vocabulary), [text for text in awkward_texts() if text[:1] not in ("", " ")])


def test_gemma_ids_are_those_of_its_class(tmp_path: Path) -> None:
    runs = ["▁" * n for n in range(2, 17)]
    tags = ["\n\n", "\n\n\n", "<tag>"]
    pieces = {piece: score for piece, score in spm_pieces().items() if piece not in runs + tags}
    # llama.cpp's converter writes added tokens with the spaces that they stand for, and this score
    more = [(run.replace("▁", " "), USER_DEFINED, -1000.0) for run in runs] + [(tag, USER_DEFINED, -1000.0) for tag in tags]
    vocabulary = spm_vocabulary(pieces, more, add_space_prefix=False)
    vocab = {token.replace(" ", "▁"): i for i, token in enumerate(vocabulary.tokens)}
    roles = {"unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>", "pad_token": "<unk>", "mask_token": "<unk>"}
    merges: Any = generate_merges(vocab, pieces | dict.fromkeys(runs, 1.0))
    original = transformers.GemmaTokenizer(vocab=vocab, merges=merges, **roles).backend_tokenizer
    original.add_tokens([tokenizers.AddedToken(tag, normalized=False) for tag in tags])
    texts = [*awkward_texts(), *(f"x{' ' * n}y" for n in range(1, 40)), "a\n\n\n\n\nb"]
    assert_same(original, convert_vocabulary(tmp_path, vocabulary), texts)
