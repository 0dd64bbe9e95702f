"""SentencePiece BPE out of a GGUF file (tokenizer model ``llama``: Llama 2, Mistral, Gemma).

SentencePiece joins the two neighbours whose union has the highest score; tokenizers joins by a list of merges. So every way to
cut a piece into two others becomes a merge, in the order of the pieces' scores.
"""

from __future__ import annotations

from collections.abc import Iterator

from gguf import TokenType
from tokenizers import Tokenizer, decoders, models, normalizers

from mqlab.models.gguf_metadata import Metadata

SPACE = "▁"

Merge = tuple[str, str]


def sentencepiece_bpe(meta: Metadata, tokens: list[str]) -> Tokenizer:
    """The tokenizer without its special tokens.

    A space goes before text, and before text that follows a special token, where the file says so or does not say.

    Raises:
        ModelError: the file has no scores.
    """
    prefix = meta.get("tokenizer.ggml.add_space_prefix", True)
    pieces = [stored_piece(token, kind) for token, kind in zip(tokens, meta.kinds, strict=False)]
    merges = merges_of(pieces, meta.kinds, meta.get("tokenizer.ggml.scores"))
    unknown = next((piece for piece, kind in zip(pieces, meta.kinds, strict=False) if kind == TokenType.UNKNOWN), None)
    vocabulary = {piece: i for i, piece in enumerate(pieces)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges, unk_token=unknown, fuse_unk=True, byte_fallback=True))
    spaces = normalizers.Replace(" ", SPACE)
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend(SPACE), spaces]) if prefix else spaces
    strip = [decoders.Strip(" ", 1, 0)] if prefix else []
    tokenizer.decoder = decoders.Sequence([decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse(), *strip])
    return tokenizer


def stored_piece(token: str, kind: int) -> str:
    """A piece as tokenizers has it: llama.cpp writes the spaces of user-defined ones as they are in text."""
    return token.replace(" ", SPACE) if kind == TokenType.USER_DEFINED else token


def is_run_of_spaces(piece: str) -> bool:
    """Gemma's runs of spaces are user-defined, but come about by merges: by then, text has no spaces that one could look for."""
    return piece.strip(SPACE + " ") == ""


def merges_of(pieces: list[str], kinds: list[int], scores: list[float]) -> list[Merge]:
    """Every cut of a piece into two, best score first; runs of spaces before all others, and among equals the longest left part."""
    rank: dict[str, float] = {}
    for piece, kind, score in zip(pieces, kinds, scores, strict=False):
        if kind == TokenType.NORMAL:
            rank[piece] = -score
        elif kind == TokenType.USER_DEFINED and is_run_of_spaces(piece):
            rank[piece] = float("-inf")
    cuts = [(best, -len(left), -len(right), left, right) for piece, best in rank.items() for left, right in _cuts(piece, rank)]
    return [(left, right) for *_, left, right in sorted(cuts)]


def _cuts(piece: str, known: dict[str, float]) -> Iterator[Merge]:
    for at in range(1, len(piece)):
        if piece[:at] in known and piece[at:] in known:
            yield piece[:at], piece[at:]
