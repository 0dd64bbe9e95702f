"""The text model of whatever model the engine has just now: another one is loaded where the engine's has changed."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path

from mqlab.client.contract import EngineClient
from mqlab.engine.available import check_loaded
from mqlab.errors import ModelError, ModelUnavailable
from mqlab.front.textmodel import TextModel
from mqlab.text.chat import ChatTemplate
from mqlab.types import ModelInfo


@dataclass(frozen=True, slots=True)
class Current:
    """A model that can serve: what the engine says of it, and its tokenizer and template."""

    info: ModelInfo
    text: TextModel


class CurrentText:
    """Follows ``client.info.epoch``.

    Args:
        client: a started engine client.
        text: of the model that it has; None where that is yet to be loaded.
    """

    def __init__(self, client: EngineClient, text: TextModel | None) -> None:
        self._client = client
        self._epoch = None if text is None else client.info.epoch
        self._text = text
        self._template: str | None = None
        self._loading = asyncio.Lock()

    def use_chat_template(self, source: str) -> None:
        """Of this model, and of those that come after it.

        Raises:
            InvalidRequest: it is none.
        """
        ChatTemplate(source).traits()
        self._template = source
        if self._text is not None:
            self._text = self._text.with_chat_template(source)

    @property
    def last(self) -> TextModel:
        """Of the model that was served last.

        Raises:
            ModelUnavailable: none was so far.
        """
        if self._text is None:
            raise ModelUnavailable("no model was served so far, so there is no tokenizer yet; send a request first")
        return self._text

    async def get(self) -> Current:
        """The model that can serve; its tokenizer is loaded in a thread, once for all who ask meanwhile.

        Raises:
            ModelUnavailable: there is none. ModelError: its folder holds no readable tokenizer.
        """
        if (current := self._known()) is not None:
            return current
        async with self._loading:
            while (current := self._known()) is None:
                info = self._client.info
                self._text = await asyncio.to_thread(self._load, folder_of(info))
                self._epoch = info.epoch
        return current

    def _load(self, folder: Path) -> TextModel:
        text = TextModel.load(folder)
        return text if self._template is None else text.with_chat_template(self._template)

    def _known(self) -> Current | None:
        info = self._client.info
        check_loaded(info)
        return Current(info, self._text) if self._text is not None and self._epoch == info.epoch else None


def folder_of(info: ModelInfo) -> Path:
    """Where the tokenizer of an engine's model is.

    Raises:
        ModelError: the engine has no model folder.
    """
    if not info.path:
        raise ModelError(f"engine {info.name!r} names no model folder, so it has no tokenizer; use its client with token ids")
    return Path(info.path)
