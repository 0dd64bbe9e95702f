"""Python's garbage collector in a process that does nothing but serve."""

from __future__ import annotations

import gc

_YOUNG = 50_000
"""Containers more than at the last look: with the usual 700, ten thousand streams that open are looked through hundreds of times."""


def spare_collector() -> None:
    """Let the collector look seldom, and at nothing that is there by now. Answers leave no cycles behind, so it has little to find."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(_YOUNG, 20, 20)
