"""The deltas of one choice, put together to the whole of it."""

from __future__ import annotations

from mqlab.front.choice import ChoiceReader
from mqlab.types import Choice, Delta, Output


class ChoiceCollector:
    """Takes every delta of one choice.

    Without stop strings nothing has to be found on the way, so the text is decoded once, at the end: a twentieth of the work.

    Args:
        reader: the choice's reader, unused so far.
    """

    def __init__(self, reader: ChoiceReader) -> None:
        self._reader = reader
        self._texts: list[str] = []
        self._tokens: list[int] = []

    def add(self, delta: Delta) -> Choice | None:
        """Add a delta, return the choice once it has ended."""
        if self._reader.searches or delta.text is not None:
            output = self._reader.read(delta)
            self._texts.append(output.text)
            self._tokens += output.tokens
        else:
            self._tokens += delta.tokens
            if delta.finish is None:
                return None
            output = self._reader.read(Delta(delta.id, self._tokens, delta.finish, delta.stop_reason))
            self._texts.append(output.text)
        return self._choice(output)

    def _choice(self, last: Output) -> Choice | None:
        if last.finish is None:
            return None
        text, tokens = "".join(self._texts), tuple(self._tokens)
        return Choice(index=last.index, text=text, tokens=tokens, finish=last.finish, stop_reason=last.stop_reason)
