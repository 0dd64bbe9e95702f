"""Text of byte-level tokens as they come: each stands for the same bytes wherever it is, so looking them up is all it takes."""

from __future__ import annotations

import codecs
from collections.abc import Callable, Container, Sequence

import msgspec

from mqlab.text.rawbytes import byte_level_bytes

_UTF8 = codecs.getincrementaldecoder("utf-8")


class Pieces(dict[int, str | bytes]):
    """What each id adds: text, or bytes that are no text by themselves. Filled as ids are asked for; what adds nothing is not kept.

    Args:
        entry_of: how the vocabulary spells an id, None where it has no entry.
        hidden: ids that add nothing.

    Attributes:
        escaped: the text of each id as JSON has it between quotes.
    """

    def __init__(self, entry_of: Callable[[int], str | None], hidden: Container[int]) -> None:
        super().__init__()
        self._entry_of = entry_of
        self._hidden = hidden
        self.escaped = Escaped(self)

    def __missing__(self, id: int) -> str | bytes:
        entry = None if id in self._hidden else self._entry_of(id)
        if entry is None:
            return ""
        raw = byte_level_bytes(entry)
        try:
            piece = raw.decode()
        except UnicodeDecodeError:
            piece = raw
        self[id] = piece
        return piece


class Escaped(dict[int, bytes | None]):
    """What each id adds to a JSON string, None where it is no text by itself. Filled as ids are asked for."""

    def __init__(self, pieces: Pieces) -> None:
        super().__init__()
        self._pieces = pieces

    def __missing__(self, id: int) -> bytes | None:
        piece = self._pieces[id]
        escaped = msgspec.json.encode(piece)[1:-1] if isinstance(piece, str) else None
        if escaped != b"":  # there is no end of ids without an entry
            self[id] = escaped
        return escaped


class ByteLevelDecoder:
    """Adds up the bytes of ids and returns what is whole characters; invalid bytes become U+FFFD as soon as they are known to be.

    Attributes:
        pieces: what each id adds.
        whole: nothing is held back, so the next id that is text by itself adds just that, and need not be pushed.
    """

    __slots__ = ("_bytes", "pieces", "whole")

    def __init__(self, pieces: Pieces) -> None:
        self.pieces = pieces
        self._bytes = _UTF8("replace")
        self.whole = True

    def push(self, tokens: Sequence[int]) -> str:
        """Add ids, return the text that they complete."""
        text = ""
        for token in tokens:
            piece = self.pieces[token]
            text += piece if self.whole and type(piece) is str else self._join(piece)
        return text

    def flush(self) -> str:
        """What is still held back, an incomplete character as U+FFFD."""
        self.whole = True
        return self._bytes.decode(b"", final=True)

    def _join(self, piece: str | bytes) -> str:
        text = self._bytes.decode(piece.encode() if isinstance(piece, str) else piece)
        self.whole = not self._bytes.getstate()[0]
        return text
