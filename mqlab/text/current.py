"""The tokenizer of whatever model an engine has just now, for whoever detokenises beside it."""

from __future__ import annotations

import logging
from pathlib import Path

from mqlab.errors import ModelError
from mqlab.text.tokenizer import Tokenizer
from mqlab.types import ModelInfo

logger = logging.getLogger("mqlab.text")


class CurrentTokenizer:
    """Swapped with the model. An engine must go on where a model has no tokenizer: detokenising is then left to the front.

    Args:
        tokenizer: of the first model, where it is known.
        epoch: of that model; 0 is before any.

    Attributes:
        tokenizer: None where there is none.
    """

    def __init__(self, tokenizer: Tokenizer | None = None, epoch: int = 0) -> None:
        self.tokenizer = tokenizer
        self._epoch = epoch

    def take(self, info: ModelInfo) -> None:
        """The engine has this model from now on."""
        if info.epoch != self._epoch:
            self._epoch = info.epoch
            self.tokenizer = _tokenizer_of(info)


def _tokenizer_of(info: ModelInfo) -> Tokenizer | None:
    if not info.path:
        return None
    try:
        return Tokenizer.load(Path(info.path))
    except ModelError as error:
        logger.warning("no text with the tokens of %s: %s", info.name, error)
        return None
