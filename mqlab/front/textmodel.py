"""What a front needs of a model: its tokenizer and its chat template."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from mqlab.text.chat import ChatTemplate
from mqlab.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class TextModel:
    """Ids <-> text for one model.

    Attributes:
        tokenizer: text to ids and back.
        chat: messages to text.
    """

    tokenizer: Tokenizer
    chat: ChatTemplate

    @staticmethod
    def load(folder: Path) -> TextModel:
        """The tokenizer and the template of a model folder.

        Raises:
            ModelError: the folder holds no readable tokenizer.json.
        """
        tokenizer = Tokenizer.load(folder)
        return TextModel(tokenizer, ChatTemplate.load(folder, tokenizer))

    def render(self, messages: Sequence[Mapping[str, Any]], /, **options: Any) -> str:
        """A conversation as the template prints it, special tokens included. ``options`` are those of ChatTemplate.render.

        Raises:
            InvalidRequest: no template, or messages that it refuses.
        """
        return self.chat.render(messages, **options)

    def with_chat_template(self, source: str) -> TextModel:
        """The same with another template."""
        return TextModel(self.tokenizer, ChatTemplate(source, self.tokenizer.special_tokens))

    @cached_property
    def special_names(self) -> frozenset[str]:
        """How the special tokens read, where a text shows them."""
        return frozenset(self.tokenizer.name(id) for id in self.tokenizer.special_ids)

    @cached_property
    def longest_token(self) -> int:
        """Characters that one token can stand for, at most. Takes about 0.1 s the first time."""
        decode = self.tokenizer.decode
        return 1 + max(len(decode((i,), False)) for i in range(self.tokenizer.vocab_size))
