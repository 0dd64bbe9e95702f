"""How much of a server one API key has: how many of its requests are open."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from mqlab.server.errors import RETRY, ApiError


class Shares:
    """Counts open requests by who sent them.

    Args:
        limit: of each; None for no limit.
    """

    def __init__(self, limit: int | None) -> None:
        self._limit = limit
        self._open: dict[bytes, int] = {}

    @contextmanager
    def one_of(self, owner: bytes) -> Iterator[None]:
        """One more request of this owner, while the block runs.

        Raises:
            ApiError: 429, it has as many as it may have.
        """
        if self._limit is None:
            yield
            return
        count = self._open.get(owner, 0)
        if count >= self._limit:
            raise _too_many(self._limit)
        self._open[owner] = count + 1
        try:
            yield
        finally:
            self._open[owner] -= 1
            if not self._open[owner]:
                del self._open[owner]


def _too_many(limit: int) -> ApiError:
    message = f"{limit} requests of this API key are open, the most that may be (limit_per_key); send it again when one has ended"
    return ApiError(429, message, kind="rate_limit_error", code="rate_limit_exceeded", headers=RETRY)
