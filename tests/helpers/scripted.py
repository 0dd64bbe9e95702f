"""A core that answers every prompt with the same tokens, and a server over it: for texts that no model would write on demand."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
from serving import FAST, Served, served_by

from mqlab.clock import MonotonicClock
from mqlab.engine.echo import EchoCore, EchoSetup
from mqlab.text.tokenizer import Tokenizer
from mqlab.topologies import make_client
from mqlab.types import Request
from mqlab.wire.spec import Spec
from mqlab.wire.wiring import Wiring

END = 2


class ScriptedCore(EchoCore):
    """Its answer does not depend on what it is asked.

    Args:
        script: token ids, given out from the beginning, again and again.
        setup: as EchoCore takes it.
    """

    def __init__(self, script: Sequence[int], setup: EchoSetup) -> None:
        super().__init__(setup, MonotonicClock())
        self._script = list(script)

    def add(self, request: Request) -> None:
        """See Core.add."""
        super().add(msgspec.structs.replace(request, prompt=self._script))


def build(script: Sequence[int], **setup: Any) -> ScriptedCore:
    """For a Spec."""
    return ScriptedCore(script, EchoSetup(**setup))


def letters(folder: Path, text: str) -> list[int]:
    """A text as tokens of one character each, and an end."""
    tokenizer = Tokenizer.load(folder)
    return [id for letter in text for id in tokenizer.encode(letter, False)] + [END]


@asynccontextmanager
async def scripted(folder: Path, script: Sequence[int], *, server: dict[str, Any] | None = None, **core: Any) -> AsyncIterator[Served]:
    """A server that answers with these tokens; ``folder`` has its tokenizer and template."""
    wiring = Wiring(Spec("scripted:build", {"script": list(script), "path": str(folder), **core}), timing=FAST)
    async with served_by(make_client("aio", wiring), **(server or {})) as served:
        yield served
