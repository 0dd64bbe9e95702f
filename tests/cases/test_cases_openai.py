"""OpenAI's API to the letter, as its own client and plain HTTP see it.

C24: what is wrong is told in the envelope, with the right status, and raised as the right class. C44: how each choice ends. C45: usage of
streams.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from openai import AsyncOpenAI
from serving import Served, serving

from mqlab.contract.waiting import until

COMPLETIONS, CHAT, EMBEDDINGS = "/v1/completions", "/v1/chat/completions", "/v1/embeddings"
TALK: list[Any] = [{"role": "user", "content": "Say hi"}]
JSON = "application/json"


# --- C24

GOOD: dict[str, dict[str, Any]] = {
    COMPLETIONS: {"prompt": "Hello", "max_tokens": 2},
    CHAT: {"messages": TALK, "max_tokens": 2},
    EMBEDDINGS: {"input": "Hello"},
    "/tokenize": {"prompt": "Hello"},
    "/detokenize": {"tokens": [5]},
}
EVERYWHERE: list[tuple[dict[str, Any], int, str | None]] = [
    ({"model": "other"}, 404, "model"),
    ({"model": 5}, 400, "model"),
    ({"model": ["echo"]}, 400, "model"),
]
GENERATING: list[tuple[dict[str, Any], str]] = [
    ({"n": 2049}, "n"),
    ({"n": -1}, "n"),
    ({"n": 10**25}, "n"),
    ({"max_tokens": 1.5}, "max_tokens"),
    ({"max_tokens": 10**25}, "max_tokens"),
    ({"temperature": 1e300}, "temperature"),
    ({"temperature": "1"}, "temperature"),
    ({"top_p": -0.1}, "top_p"),
    ({"seed": 10**25}, "seed"),
    ({"presence_penalty": 2.01}, "presence_penalty"),
    ({"frequency_penalty": []}, "frequency_penalty"),
    ({"logit_bias": {"x": 1}}, "logit_bias"),
    ({"logit_bias": {"5": 1000}}, "logit_bias"),
    ({"stop": {}}, "stop"),
    ({"stop": ["a", None]}, "stop"),
    ({"stream": "yes"}, "stream"),
    ({"stream_options": {"include_usage": True}}, "stream_options"),
    ({"stream_options": 5, "stream": True}, "stream_options"),
    ({"response_format": {}}, "response_format"),
    ({"response_format": {"type": "json_schema", "json_schema": {}}}, "response_format"),
    ({"response_format": {"type": "xml"}}, "response_format"),
    ({"response_format": []}, "response_format"),
]
COMPLETING: list[tuple[dict[str, Any], str]] = [
    ({"prompt": {}}, "prompt"),
    ({"prompt": [[1], "a"]}, "prompt"),
    ({"prompt": [10**25]}, "prompt"),
    ({"prompt": ["a"] * 1025, "n": 2}, "n"),
    ({"suffix": "the end"}, "suffix"),
    ({"best_of": 3}, "best_of"),
    ({"best_of": 1, "n": 2}, "best_of"),
    ({"logprobs": -2}, "logprobs"),
    ({"logprobs": True}, "logprobs"),
    ({"echo": "yes"}, "echo"),
]
CHATTING: list[tuple[dict[str, Any], str]] = [
    ({"messages": {}}, "messages"),
    ({"messages": ["hi"]}, "messages"),
    ({"messages": [{"role": "user", "content": {"a": 1}}]}, "messages"),
    ({"logprobs": 5}, "logprobs"),
    ({"top_logprobs": 21, "logprobs": True}, "top_logprobs"),
    ({"max_completion_tokens": -1}, "max_completion_tokens"),
]
ODD_BYTES = [b"", b" ", b"{", b"[]", b"5", b'"a"', b"\xff", b'{"prompt":"\xc3("}', b'{"prompt":"a","n":NaN}', b'{"n":' + b"9" * 5000 + b"}"]
ODD_TYPES = ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", "application/jsonp", "x"]
CLASSES: dict[int, type[openai.APIStatusError]] = {400: openai.BadRequestError, 404: openai.NotFoundError}


def bad_bodies() -> list[tuple[str, dict[str, Any], int, str | None]]:
    """Route, body, status and the field to blame."""
    table = [(path, {**good, **more}, status, param) for path, good in GOOD.items() for more, status, param in EVERYWHERE]
    by_path = {COMPLETIONS: GENERATING + COMPLETING, CHAT: GENERATING + CHATTING}
    return table + [(path, {**GOOD[path], **more}, 400, param) for path, cases in by_path.items() for more, param in cases]


def fault(response: httpx.Response, status: int) -> str | None:
    """What is wrong with a refusal."""
    if response.status_code != status or response.headers["content-type"] != JSON:
        return f"{response.status_code} {response.headers['content-type']}: {response.text}"
    error = response.json().get("error", {})
    whole = error.keys() == {"message", "type", "param", "code"} and error["message"] and error["type"] == "invalid_request_error"
    leaks = any(word in response.text for word in ("Traceback", ".py", "msgspec", "object at 0x"))
    return None if whole and not leaks else response.text


async def test_each_bad_body_raises_the_clients_own_class(model_folder: Path) -> None:
    async with serving(model_folder) as served, served.openai() as client:
        for path, body, status, param in bad_bodies():
            with pytest.raises(openai.APIStatusError) as raised:
                await client.with_options(max_retries=0).post(f"{served.url}{path}", body=body, cast_to=object)
            told = (type(raised.value), raised.value.param, raised.value.type)
            assert told == (CLASSES[status], param, "invalid_request_error"), (path, body, raised.value.message)
            assert fault(raised.value.response, status) is None  # type: ignore[arg-type]
        assert (await client.completions.create(model="echo", **GOOD[COMPLETIONS])).choices[0].text == "HelloHello"


async def test_bodies_that_are_no_json(model_folder: Path) -> None:
    async with serving(model_folder) as served, httpx.AsyncClient(base_url=served.url) as client:
        for path, good in GOOD.items():
            for content in ODD_BYTES:
                assert fault(await client.post(path, content=content), 400) is None, (path, content)
            for kind in ODD_TYPES:
                answer = await client.post(path, json=good, headers={"content-type": kind})
                assert fault(answer, 400) is None, (path, kind, answer.text)
                assert JSON in answer.json()["error"]["message"], "it says what to send"
            for kind in (JSON, "application/json; charset=utf-8", "Application/JSON", "application/vnd.api+json", ""):
                assert (await client.post(path, json=good, headers={"content-type": kind})).status_code == 200, kind


async def test_methods_and_paths(model_folder: Path) -> None:
    async with serving(model_folder) as served, httpx.AsyncClient(base_url=served.url) as client:
        for path in GOOD:
            for method in ("GET", "HEAD", "PUT", "PATCH", "DELETE", "OPTIONS"):
                answer = await client.request(method, path)
                assert (answer.status_code, answer.headers["allow"]) == (405, "POST")
                assert method == "HEAD" or fault(answer, 405) is None
            assert (await client.post(f"{served.url}/{path}/", json=GOOD[path])).status_code == 200, "as base URLs are joined"
        for path in ("/", "/v1", "/v1/nothing", "/v1/models/", "//v1//models"):
            answer = await client.get(served.url + path)
            assert answer.status_code == 200 if path.strip("/").endswith("models") else fault(answer, 404) is None, path
        head = await client.head("/v1/models")
        assert (head.status_code, head.content) == (200, b"")


async def test_a_whole_number_is_an_integer_however_it_is_written(model_folder: Path) -> None:
    async with serving(model_folder) as served, httpx.AsyncClient(base_url=served.url) as client:
        plain, odd = [
            await client.post(COMPLETIONS, json={"prompt": [[one, 6], [7]], "max_tokens": two, "n": one // one, "temperature": 1})
            for one, two in ((5, 2), (5.0, 2.0))
        ]
    assert odd.json()["choices"] == plain.json()["choices"]


async def test_null_is_absent_and_unknown_fields_are_ignored(model_folder: Path) -> None:
    nulls = dict.fromkeys(("model", "n", "user", "stream_options", "encoding_format", "add_special_tokens", "dimensions", "tools"))
    async with serving(model_folder) as served, httpx.AsyncClient(base_url=served.url) as client:
        for path, good in GOOD.items():
            plain, more = [await client.post(path, json={**good, **extra}) for extra in ({}, {**nulls, "x": 1, "service_tier": "auto"})]
            assert more.status_code == 200, more.text
            for varying in ("id", "created"):
                assert (varying in plain.json()) == (varying in more.json())
            assert {**plain.json(), "id": 0, "created": 0} == {**more.json(), "id": 0, "created": 0}


# --- C44

ENDINGS: list[tuple[dict[str, Any], str]] = [
    ({"prompt": "Hello world, this is a text", "max_tokens": 9}, "length"),
    ({"prompt": "Hello world, this is", "max_tokens": 90, "stop": [", th"]}, "stop"),
    ({"prompt": [9, 8, 7, 2], "max_tokens": 90}, "stop"),
    ({"prompt": ["ab cd", "ef"], "n": 2, "max_tokens": 5}, "length"),
    ({"messages": TALK, "max_completion_tokens": 7}, "length"),
    ({"messages": TALK, "n": 3, "max_tokens": 90}, "stop"),
    ({"messages": TALK, "max_tokens": 90, "stop": "hi"}, "stop"),
]


async def chunks_of(client: AsyncOpenAI, body: dict[str, Any], begin: asyncio.Event | None = None) -> list[Any]:
    """The events of a stream, read when ``begin`` is set."""
    create: Any = client.chat.completions.create if "messages" in body else client.completions.create
    stream = await create(model="echo", stream=True, **body)
    if begin is not None:
        await begin.wait()
    return [chunk async for chunk in stream]


def read(chunks: list[Any]) -> tuple[dict[int, str], dict[int, str]]:
    """Text and end of each choice, whose events are checked."""
    assert len({(chunk.id, chunk.created, chunk.object, chunk.model) for chunk in chunks}) == 1
    texts: dict[int, str] = defaultdict(str)
    ends: dict[int, str] = {}
    for chunk in chunks:
        (choice,) = chunk.choices
        assert choice.index not in ends, "nothing comes after the end"
        assert "finish_reason" in choice.model_fields_set, "there, be it null"
        if chunk.object == "chat.completion.chunk":
            assert (choice.delta.role == "assistant") == (choice.index not in texts), "the role comes first, and once"
        text = (choice.delta.content if chunk.object == "chat.completion.chunk" else choice.text) or ""
        texts[choice.index] += text
        if choice.finish_reason is not None:
            ends[choice.index] = choice.finish_reason
            assert not text, "clients drop what comes with the end"
    assert ends.keys() == texts.keys()
    return texts, ends


async def test_fifty_streams_under_load_end_as_they_should(model_folder: Path) -> None:
    async with serving(model_folder, max_num_seqs=16) as served, served.openai() as client:
        asked = [ENDINGS[number % len(ENDINGS)] for number in range(50)]
        streams = await asyncio.gather(*(chunks_of(client, body) for body, _ in asked))
        texts: dict[int, Any] = {}
        for number, ((body, end), chunks) in enumerate(zip(asked, streams, strict=True)):
            found, ends = read(chunks)
            assert set(ends.values()) == {end}, body
            assert chunks[0].object == ("chat.completion.chunk" if "messages" in body else "text_completion")
            assert found == texts.setdefault(number % len(ENDINGS), found), "the same for all who ask the same"
    assert len({chunks[0].id for chunks in streams}) == 50


async def test_a_slow_reader_sees_the_same_ends(model_folder: Path) -> None:
    """It reads when the engine is through with all of it: what was held back for it comes with its end apart."""
    begin = asyncio.Event()
    async with serving(model_folder) as served, served.openai() as client:
        prompt, chats = ({"prompt": "Hello world", "max_tokens": 1200}, {"messages": TALK, "n": 2, "max_tokens": 600})
        bodies = [{**body, "extra_body": {"ignore_eos": True}} for body in (prompt, chats)]
        slow = [asyncio.create_task(chunks_of(client, body, begin)) for body in bodies]
        await until(lambda: is_through(served, 1200 + 2 * 600))
        begin.set()
        held_back = [read(await task) for task in slow]
        quick = [read(await chunks_of(client, body)) for body in bodies]
    assert held_back == quick
    assert [set(ends.values()) for _, ends in quick] == [{"length"}] * 2


def is_through(served: Served, tokens: int) -> bool:
    return served.stats.generation_tokens >= tokens and served.stats.running == 0


# --- C45

UNASKED: list[Any] = [openai.omit, None, {}, {"include_usage": False}, {"include_usage": None}]


async def test_usage_comes_when_it_is_asked_for_and_only_then(model_folder: Path) -> None:
    bodies: list[dict[str, Any]] = [{"prompt": "Hello", "max_tokens": 3}, {"messages": TALK, "n": 2, "max_tokens": 3}]
    async with serving(model_folder) as served, served.openai() as client:
        for body in bodies:
            for options in UNASKED:
                chunks = await chunks_of(client, {**body, "stream_options": options})
                assert all(chunk.choices and chunk.usage is None for chunk in chunks), options
            *chunks, last = await chunks_of(client, {**body, "stream_options": {"include_usage": True}})
            read(chunks)
            assert all("usage" in chunk.model_fields_set and chunk.usage is None for chunk in chunks), "there, and null"
            create: Any = client.chat.completions.create if "messages" in body else client.completions.create
            whole = await create(model="echo", **body)
            assert (last.choices, last.usage) == ([], whole.usage)
            assert last.usage.completion_tokens == 3 * len(whole.choices)
            for options in ({}, {"include_usage": True}, {"include_usage": False}):
                with pytest.raises(openai.BadRequestError) as refused:
                    await create(model="echo", **body, stream_options=options)
                assert refused.value.param == "stream_options"
