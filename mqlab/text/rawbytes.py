"""The bytes behind a tokenizer's entry, which may be no whole characters."""

from __future__ import annotations

import re

_MARK = "\ufffd"
_FALLBACK = re.compile(r"<0x([0-9A-Fa-f]{2})>")


def raw_bytes(entry: str, text: str, byte_fallback: bool) -> bytes:
    """The bytes of one entry.

    Args:
        entry: as the vocabulary spells it.
        text: what it decodes to, with U+FFFD for what is no whole character.
        byte_fallback: single bytes are spelled ``<0xE2>``.
    """
    if byte_fallback and (byte := _FALLBACK.fullmatch(entry)):
        return bytes.fromhex(byte[1])
    if _MARK in text and all(character in _BYTE_OF for character in entry):
        return bytes(_BYTE_OF[character] for character in entry)
    return text.encode()


def byte_level_bytes(entry: str) -> bytes:
    """The bytes of one entry of a byte-level vocabulary; an added token that is not spelled in its way stands for its own text."""
    try:
        return bytes([_BYTE_OF[character] for character in entry])
    except KeyError:
        return entry.encode()


def _spelled_bytes() -> dict[str, int]:
    """How byte-level vocabularies spell each byte: visible Latin-1 as itself, the others from U+0100 on in order. Source: GPT-2."""
    visible = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in visible]
    return {chr(byte): byte for byte in visible} | {chr(0x100 + place): byte for place, byte in enumerate(others)}


_BYTE_OF = _spelled_bytes()
