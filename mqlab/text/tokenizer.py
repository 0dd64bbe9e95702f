"""Text to token ids and back, with a model folder's own tokenizer.json."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import tokenizers

from mqlab.errors import ModelError
from mqlab.text.bytelevel import Pieces
from mqlab.text.rawbytes import raw_bytes

_ROLES = ("bos_token", "eos_token", "unk_token", "pad_token")
_MAX_ID = 2**32 - 1


class Tokenizer:
    """A `tokenizers` tokenizer with the special tokens that tokenizer_config.json names.

    Attributes:
        special_tokens: names by role, as templates expect them: bos_token, eos_token, unk_token, pad_token.
        byte_fallback: whether single bytes are tokens of their own, as in Llama 2.
        vocab_size: ids below this have an entry; a model's embedding may be wider.
        special_ids: ids that stand for no text of their own: start and end tokens, those of templates.
    """

    def __init__(self, backend: tokenizers.Tokenizer, special_tokens: Mapping[str, str]) -> None:
        backend.no_truncation()
        backend.no_padding()
        self._backend = backend
        self.special_tokens = dict(special_tokens)
        self.byte_fallback = backend.decoder is not None and b"ByteFallback" in backend.decoder.__getstate__()
        self.vocab_size = backend.get_vocab_size(with_added_tokens=True)
        self._raw: dict[int, bytes] = {}
        self.special_ids = frozenset(i for i, token in backend.get_added_tokens_decoder().items() if token.special)
        self._pieces = {skip: Pieces(partial(_entry, backend), self.special_ids if skip else ()) for skip in (True, False)}
        self._byte_level = type(backend.decoder) is tokenizers.decoders.ByteLevel

    @classmethod
    def load(cls, folder: Path) -> Tokenizer:
        """The tokenizer of a model folder: tokenizer.json and, where there is one, tokenizer_config.json.

        Raises:
            ModelError: tokenizer.json is missing, or one of the two cannot be read.
        """
        path = folder / "tokenizer.json"
        if not path.is_file():
            raise ModelError(f"{folder} holds no tokenizer.json; save it there with transformers' save_pretrained")
        try:
            backend = tokenizers.Tokenizer.from_file(str(path))
        except Exception as error:  # the library raises plain Exception
            raise ModelError(f"{path} cannot be read: {error}; download or save the tokenizer again") from error
        return cls(backend, _special_tokens(load_tokenizer_config(folder)))

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Ids of ``text``. The text of a special token becomes that token.

        Text that a chat template rendered holds its special tokens already: encode it with ``add_special_tokens=False``, or
        models that put a start token before every text get two.
        """
        # The batch call leaves the GIL, so that a long prompt in a thread does not stop the event loop.
        return self._backend.encode_batch_fast([text], add_special_tokens=add_special_tokens)[0].ids

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """Text of ``ids``; ids without an entry add nothing, incomplete or invalid UTF-8 becomes U+FFFD."""
        try:
            return self._backend.decode(ids, skip_special_tokens)
        except OverflowError:
            return self._backend.decode([i for i in ids if 0 <= i <= _MAX_ID], skip_special_tokens)

    def name(self, id: int) -> str:
        """What the vocabulary calls one id, in the tokenizer's own spelling of spaces and bytes; empty where it has no entry."""
        return _entry(self._backend, id) or ""

    def pieces(self, skip_special_tokens: bool = True) -> Pieces | None:
        """What each id adds to a text; None where that depends on the ids beside it, which is everywhere but in byte-level vocabularies."""
        return self._pieces[skip_special_tokens] if self._byte_level else None

    def raw(self, id: int) -> bytes:
        """The bytes that one id stands for by itself: part of a character just that part, a special token its name, no entry none."""
        known = self._raw.get(id)
        if known is None:
            known = self._raw[id] = self._raw_of(id)
        return known

    def _raw_of(self, id: int) -> bytes:
        entry = _entry(self._backend, id)
        if entry is None:
            return b""
        if id in self.special_ids:
            return entry.encode()
        alone = self.decode([id], False)
        # After another token: a first one loses its leading space under some tokenizers.
        return raw_bytes(entry, self.decode([id, id], False)[len(alone) :], self.byte_fallback)


def _entry(backend: tokenizers.Tokenizer, id: int) -> str | None:
    return backend.id_to_token(id) if 0 <= id <= _MAX_ID else None


def load_tokenizer_config(folder: Path) -> dict[str, Any]:
    """tokenizer_config.json of a model folder; empty where there is none.

    Raises:
        ModelError: it is not a JSON object.
    """
    path = folder / "tokenizer_config.json"
    if not path.is_file():
        return {}
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, OSError) as error:
        raise ModelError(f"{path} cannot be read: {error}; download or save the tokenizer again") from error
    if not isinstance(config, dict):
        raise ModelError(f"{path} holds a {type(config).__name__}, not an object; download or save the tokenizer again")
    return config


def _special_tokens(config: Mapping[str, Any]) -> dict[str, str]:
    """A token is written as its text, or as an object with its text under ``content``."""
    named = {role: config.get(role) for role in _ROLES}
    texts = {role: token.get("content") if isinstance(token, dict) else token for role, token in named.items()}
    return {role: text for role, text in texts.items() if isinstance(text, str)}
