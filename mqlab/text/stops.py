"""Stop strings in text that arrives in pieces."""

from __future__ import annotations

from collections.abc import Sequence


class StopFinder:
    """Passes text on until the first stop string.

    The first is the one that begins first; of several that begin there, the shortest. Text that may yet turn out to be the
    beginning of a stop string is held back, so memory and work per push depend on the longest stop string and the piece, not
    on the text so far.

    Attributes:
        found: the stop string that was met, None so far.
    """

    def __init__(self, stops: Sequence[str], include: bool = False) -> None:
        self._stops = tuple(stops)
        self._include = include
        self._held = ""
        self.found: str | None = None

    def push(self, piece: str, *, final: bool = False) -> str:
        """Add text, return what is certain to stand before the first stop string (with it, where it is included).

        With ``final`` no more text follows, so nothing is held back.
        """
        if self.found is not None:
            return ""
        text = self._held + piece
        possible = len(text) if final else min(_begins_at_end(text, stop) for stop in self._stops)
        matches = [(start, len(stop), stop) for stop in self._stops if (start := text.find(stop)) >= 0]
        if matches and min(matches)[0] <= possible:
            start, length, self.found = min(matches)
            self._held = ""
            return text[: start + length if self._include else start]
        self._held = text[possible:]
        return text[:possible]


def _begins_at_end(text: str, stop: str) -> int:
    """Where the longest end of ``text`` starts that is a proper beginning of ``stop``; the length of ``text`` if none is."""
    start = text.find(stop[0], max(0, len(text) - len(stop) + 1))
    while start >= 0:
        if stop.startswith(text[start:]):
            return start
        start = text.find(stop[0], start + 1)
    return len(text)
