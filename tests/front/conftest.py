"""Clients for fronts: one that plays a script, and echo engines that serve the default model's tokenizer."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from typing import Any

import pytest

from mqlab.front.textmodel import TextModel
from mqlab.topologies import make_client
from mqlab.types import Delta, ModelInfo, Request
from mqlab.wire.spec import Spec
from mqlab.wire.wiring import Wiring


class ScriptedClient:
    """Plays the deltas of ``script(request)``; an exception among them is raised. Knows what was asked and what was left early."""

    def __init__(self, script: Callable[[Request], list[Delta | Exception]], **info: Any) -> None:
        self.info = ModelInfo(**{"name": "scripted", "vocab_size": 49152, "max_model_len": 128, "max_prompt_len": 127, **info})
        self._script = script
        self.requests: list[Request] = []
        self.left_early: list[str] = []

    async def generate(self, request: Request) -> AsyncGenerator[Delta, None]:
        self.requests.append(request)
        finished = False
        try:
            for item in self._script(request):
                if isinstance(item, Exception):
                    finished = True
                    raise item
                finished = item.finish is not None
                yield item
        finally:
            if not finished:
                self.left_early.append(request.id)


@pytest.fixture(scope="session")
def scripted() -> type[ScriptedClient]:
    return ScriptedClient


@pytest.fixture(scope="session")
def text(model_folder: Path) -> TextModel:
    return TextModel.load(model_folder)


@pytest.fixture
def echo(model_folder: Path) -> Callable[..., Any]:
    """``echo(topology, **options)``: a client, not started, whose engine repeats the prompt."""

    def make(topology: str = "inproc", **options: Any) -> Any:
        options = {"path": str(model_folder), "eos_token_ids": (), **options}
        return make_client(topology, Wiring(Spec("mqlab.engine.echo:build", options), log_stats_interval=0))

    return make
