"""Wrappers of a core, for ``Wiring.wraps``: some see its requests, in the test's own process only; one never lands a step."""

from __future__ import annotations

from typing import Any, ClassVar

from mqlab.types import Request


class Spy:
    """Notes every prompt that is added."""

    prompts: ClassVar[list[tuple[int, ...]]] = []

    def __init__(self, core: Any) -> None:
        self._core = core

    def __getattr__(self, name: str) -> Any:
        return getattr(self._core, name)

    def add(self, request: Request) -> None:
        """See Core.add."""
        self.prompts.append(tuple(request.prompt))
        self._core.add(request)


class Ending(Spy):
    """Notes that it was closed."""

    closed: ClassVar[list[str]] = []

    def close(self) -> None:
        """See Core.close."""
        self.closed.append(self._core.info.name)
        self._core.close()


class Broken(Spy):
    """Dies of its third request."""

    def add(self, request: Request) -> None:
        """See Core.add."""
        super().add(request)
        if len(self.prompts) == 3:
            raise RuntimeError("the third request")


class Stuck(Spy):
    """Its first step spins for ever."""

    def begin(self) -> Any:
        """See Core.begin."""
        return self

    def wait(self) -> None:
        """See InFlight.wait."""
        stuck_here()


def stuck_here() -> None:
    """Spin."""
    while True:
        sum(range(1000))
