"""C30: while a huge prompt is made ready the loop turns: probes are answered, streams go on, and what cannot fit is not even tokenised."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from serving import serving

from mqlab.contract.waiting import until
from mqlab.front.textmodel import TextModel
from mqlab.text.tokenizer import Tokenizer

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
TALK = [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Hi"}]


class Held:
    """A method that, from the moment it is held, gets no further until it is released."""

    def __init__(self, patch: pytest.MonkeyPatch, owner: type, name: str) -> None:
        self.entered, self._released = threading.Event(), threading.Event()
        self._original: Callable[..., Any] = getattr(owner, name)
        patch.setattr(owner, name, lambda *given, **named: self._wait(*given, **named))

    def _wait(self, *given: Any, **named: Any) -> Any:
        self.entered.set()
        assert self._released.wait(20)
        return self._original(*given, **named)

    def release(self) -> None:
        self._released.set()


@pytest.mark.parametrize(
    ("path", "body", "owner", "name"),
    [
        (COMPLETIONS, {"prompt": "Hello " * 6000}, Tokenizer, "encode"),
        (CHAT, {"messages": [{"role": "user", "content": "Hello " * 6000}]}, Tokenizer, "encode"),
        (CHAT, {"messages": TALK * 100}, TextModel, "render"),
        pytest.param("/tokenize", {"prompt": "Hello " * 6000}, Tokenizer, "encode", marks=pytest.mark.full),
        pytest.param("/tokenize", {"messages": TALK * 100}, TextModel, "render", marks=pytest.mark.full),
    ],
    ids=["text", "chat", "talk", "tokenize", "tokenize talk"],
)
async def test_probes_and_streams_go_on_while_a_prompt_is_made_ready(
    model_folder: Path, monkeypatch: pytest.MonkeyPatch, path: str, body: dict[str, Any], owner: type, name: str
) -> None:
    limit = {} if path == "/tokenize" else {"max_tokens": 1}
    async with serving(model_folder, device_time=0.001) as served, httpx.AsyncClient(base_url=served.url, timeout=20) as client:
        stream = asyncio.create_task(client.post(COMPLETIONS, json={"prompt": "x", "max_tokens": 8000, "ignore_eos": True, "stream": True}))
        await until(lambda: served.stats.running == 1)
        held = Held(monkeypatch, owner, name)
        asked = asyncio.create_task(client.post(path, json={**body, **limit}))
        try:
            await until(held.entered.is_set)
            before = served.stats.generation_tokens
            for probe in ("/health", "/ready", "/metrics"):
                assert (await client.get(probe)).status_code == 200
            await until(lambda: served.stats.generation_tokens > before + 5)
            assert not asked.done()
        finally:
            held.release()
        assert (await asked).status_code == 200
        stream.cancel()
        await asyncio.gather(stream, return_exceptions=True)


async def test_what_cannot_fit_is_refused_without_tokenising(model_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving(model_folder) as served, httpx.AsyncClient(base_url=served.url, timeout=20) as client:
        monkeypatch.setattr(Tokenizer, "encode", None)
        huge = "word " * 1_700_000
        for path, body in ((COMPLETIONS, {"prompt": huge}), (CHAT, {"messages": [{"role": "user", "content": huge}]})):
            refused = await client.post(path, json=body)
            assert refused.status_code == 400 and "characters, at least" in refused.json()["error"]["message"]
