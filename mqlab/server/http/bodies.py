"""How long a body may be, and how much of all bodies that are still being sent a process holds."""

from __future__ import annotations

from starlette.types import Message, Receive, Scope

from mqlab.server.errors import ApiError, unavailable

_TOGETHER = 4
"""Bodies of the greatest length that may be under way at once, or many short ones: whoever sends slowly holds memory, not only time."""

_SMALL = 1 << 20
"""Bytes that a body may say that it has without being counted with the others."""


class Bodies:
    """The bodies of one process.

    Args:
        longest: MiB that one may have.
    """

    def __init__(self, longest: float) -> None:
        self._longest_mb = longest
        self.longest = int(longest * (1 << 20))
        self.held = 0

    def of(self, scope: Scope, receive: Receive) -> Body | None:
        """The body of a request that must be counted as it comes; None of one that is short.

        Raises:
            ApiError: 413, before any of it is read.
        """
        for name, value in scope["headers"]:
            if name == b"content-length":
                if int(value) > self.longest:
                    raise self.too_long()
                return Body(self, receive) if int(value) > _SMALL else None
            if name == b"transfer-encoding":
                return Body(self, receive)
        return None

    def check(self, size: int) -> None:
        """Refuse a body of which so much has come.

        Raises:
            ApiError: 413, it is too long; 503, all of them are.
        """
        if size > self.longest:
            raise self.too_long()
        if self.held > _TOGETHER * self.longest:
            words = f"{_TOGETHER} times {self._longest_mb:g} MiB (max_body_mb) of requests are being sent at once; send it again"
            raise unavailable(words, "overloaded", retry=True)

    def too_long(self) -> ApiError:
        """HTTP 413."""
        return ApiError(413, f"the body is longer than {self._longest_mb:g} MiB (max_body_mb); send less at once", code="body_too_long")


class Body:
    """One that is counted as it comes, until all of it is there or its request is over."""

    def __init__(self, bodies: Bodies, receive: Receive) -> None:
        self._bodies = bodies
        self._receive = receive
        self._size = 0
        self._counted = True

    async def receive(self) -> Message:
        """See ASGI.

        Raises:
            ApiError: see Bodies.check.
        """
        message = await self._receive()
        if self._counted:
            size = len(message.get("body", b""))
            self._size += size
            self._bodies.held += size
            self._bodies.check(self._size)
            if not message.get("more_body", False):
                self.close()
        return message

    def close(self) -> None:
        """Count it no more. Idempotent."""
        if self._counted:
            self._counted = False
            self._bodies.held -= self._size
