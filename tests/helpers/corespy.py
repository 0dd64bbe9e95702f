"""Wrappers of a core, for ``Wiring.wraps``, that see its requests. In the test's own process only."""

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


class Broken(Spy):
    """Dies of its third request."""

    def add(self, request: Request) -> None:
        """See Core.add."""
        super().add(request)
        if len(self.prompts) == 3:
            raise RuntimeError("the third request")
