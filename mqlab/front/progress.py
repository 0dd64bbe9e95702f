"""A bar for offline runs: requests done, and tokens per second."""

from __future__ import annotations

from types import TracebackType
from typing import Any, Self

from mqlab.bars import progress_bar
from mqlab.types import Completion, Embedding


class Progress:
    """A bar on stderr.

    Args:
        total: requests.
        shown: whether to draw at all.
    """

    def __init__(self, total: int, shown: bool) -> None:
        self._bar: Any = None
        self._tokens = 0
        if shown:
            self._bar = progress_bar("requests", total=total, unit="req")

    def add(self, answer: Completion | Embedding) -> None:
        """One more request is done; of an embedding the prompt's tokens are counted."""
        if self._bar is None or self._bar.disable:
            return
        self._tokens += answer.prompt_tokens if isinstance(answer, Embedding) else answer.usage.completion_tokens
        elapsed = self._bar.format_dict["elapsed"]
        self._bar.set_postfix_str(f"{self._tokens / max(elapsed, 1e-9):.1f} tok/s", refresh=False)
        self._bar.update()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._bar is not None:
            self._bar.close()
