"""How many requests wait for the engine, as their client knows it."""

from __future__ import annotations

from mqlab.types import EngineStats


def pending(open_now: int, stats: EngineStats, at_once: int) -> int:
    """Requests that wait, with those that the engine has not told of yet and that will find no place in its batch.

    Args:
        open_now: streams, of all clients that share the engine where they know of each other.
        stats: what the engine published last.
        at_once: sequences that it runs in a step at most; 0 where it does not say.
    """
    untold = max(0, open_now - stats.running - stats.waiting)
    places = 0 if stats.waiting else max(0, at_once - stats.running)
    return stats.waiting + max(0, untold - places)
