"""Prompts as vectors, through the front and offline; an echo core makes them of the token ids alone."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

from mqlab.errors import InvalidRequest
from mqlab.front.frontend import Frontend
from mqlab.front.llm import LLM
from mqlab.front.textmodel import TextModel
from mqlab.types import Delta, Pooling, SamplingParams

Echo = Callable[..., Any]


async def test_text_ids_and_messages_are_embedded(echo: Echo) -> None:
    async with echo() as client:
        front = Frontend.of(client)
        ids = await front.encode("one two")
        found = await front.embed("one two")
        assert found == await front.embed(ids)
        assert (found.prompt_tokens, len(found.values)) == (len(ids), client.info.hidden_size)
        assert math.hypot(*found.values) == pytest.approx(1)
        assert (await front.embed([{"role": "user", "content": "hi"}])).prompt_tokens > 10
        assert "8 values" in repr(found)


async def test_kinds_and_lengths_differ(echo: Echo) -> None:
    async with echo() as client:
        front = Frontend.of(client)
        raw = {kind: (await front.embed([7, 8, 9], kind, False)).values for kind in ("mean", "last", "cls")}
        unit = {kind: (await front.embed([7, 8, 9], kind)).values for kind in ("mean", "last", "cls")}
    assert len(set(raw.values())) == 3
    for kind, values in raw.items():
        assert unit[kind] == pytest.approx([value / math.hypot(*values) for value in values], abs=1e-6)


async def test_what_goes_with_the_request(scripted: Any, text: TextModel) -> None:
    client = scripted(lambda request: [Delta(request.id, [], "stop", embedding=b"\0" * 8)], hidden_size=2)
    await Frontend(client, text).embed([5, 6], "last", False, request_id="mine", priority=3, salt="s")
    (request,) = client.requests
    assert (request.id, request.pooling, request.params.max_tokens) == ("mine", Pooling("last", False), 0)
    assert (request.priority, request.salt, request.epoch) == (3, "s", 1)


@pytest.mark.parametrize(
    ("prompt", "pooling", "normalize", "reason"),
    [
        ("x", "max", True, "pooling='max' must be one of mean, last, cls"),
        ("x", ["mean"], True, "pooling="),
        ("x", "mean", 1, "normalize=1 must be true or false"),
        ("", "mean", True, "0 tokens"),
        ([5] * 129, "mean", True, "129 tokens; at most 128 fit"),
        ([49152], "mean", True, "49152"),
    ],
)
async def test_what_is_refused(scripted: Any, text: TextModel, prompt: Any, pooling: Any, normalize: Any, reason: str) -> None:
    client = scripted(lambda request: [Delta(request.id, [], "stop", embedding=b"")], hidden_size=2)
    with pytest.raises(InvalidRequest, match=reason):
        await Frontend(client, text).embed(prompt, pooling, normalize)
    assert client.requests == []


async def test_an_engine_without_embeddings_says_so(scripted: Any, text: TextModel) -> None:
    client = scripted(lambda _: [])
    with pytest.raises(InvalidRequest, match="'scripted' gives no embeddings"):
        await Frontend(client, text).embed("x")
    assert client.requests == []


async def test_a_prompt_may_fill_the_context(echo: Echo) -> None:
    """There is no answer to leave room for."""
    async with echo(max_model_len=64) as client:
        assert (await Frontend.of(client).embed([5] * 64)).prompt_tokens == 64


def test_offline(echo: Echo, capsys: pytest.CaptureFixture[str]) -> None:
    with LLM.of(echo()) as llm:
        many = llm.embed(["one two", [5, 6, 7], "three"], "last")
        (one,) = llm.embed("one two", "last", use_tqdm=False)
        assert [found.prompt_tokens for found in many] == [2, 3, 1]
        assert many[0] == one
        with pytest.raises(InvalidRequest, match=r"prompts\[1\]: the prompt has 0 tokens"):
            llm.embed(["a", ""])
        assert llm.generate("one two", SamplingParams(max_tokens=2), use_tqdm=False)[0].text == "one two"
    assert "requests" in capsys.readouterr().err
