"""A core that holds its requests until enough of them are there, for ``Wiring.wraps``: however long they take to come, they run at once."""

from __future__ import annotations

from typing import Any

from mqlab.types import Request


class Gated:
    """Has nothing to do until ``count`` requests were added, and again after each ``count``.

    Args:
        core: the core inside.
        count: requests.
    """

    def __init__(self, core: Any, count: int) -> None:
        self._core = core
        self._count = count
        self._added = 0
        self._open = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._core, name)

    @property
    def has_work(self) -> bool:
        """See Core.has_work."""
        self._open = self._core.has_work and (self._open or self._added % self._count == 0)
        return self._open

    def add(self, request: Request) -> None:
        """See Core.add."""
        self._core.add(request)
        self._added += 1
