"""/v1/embeddings, by OpenAI's own client and by hand."""

from __future__ import annotations

import base64
import struct
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from serving import Served, serving

from mqlab.contract.waiting import until

PATH = "/v1/embeddings"


async def vectors(client: httpx.AsyncClient, **body: Any) -> list[list[float]]:
    answer = (await client.post(PATH, json=body)).json()
    assert [one["index"] for one in answer["data"]] == list(range(len(answer["data"])))
    return [one["embedding"] for one in answer["data"]]


async def test_openais_client_gets_what_the_front_gives(model_folder: Path) -> None:
    """It asks for base64 by itself."""
    async with serving(model_folder) as served, served.openai() as client:
        texts = ["one two", "three", "one two"]
        answer = await client.embeddings.create(model="echo", input=texts)
        expected = [await served.state.front.embed(text) for text in texts]
    assert [one.index for one in answer.data] == [0, 1, 2]
    for found, own in zip(answer.data, expected, strict=True):
        assert found.embedding == pytest.approx(own.values, abs=1e-6)
    assert answer.usage.prompt_tokens == answer.usage.total_tokens == sum(own.prompt_tokens for own in expected)
    assert (answer.object, answer.model, answer.data[0].object) == ("list", "echo", "embedding")


async def test_text_and_ids_alone_and_in_lists_are_the_same(model_folder: Path) -> None:
    async with serving(model_folder) as served, httpx.AsyncClient(base_url=served.url) as client:
        ids = await served.state.front.encode("one two")
        (text,) = await vectors(client, input="one two")
        assert await vectors(client, input=["one two"]) == await vectors(client, input=ids) == await vectors(client, input=[ids]) == [text]
        assert await vectors(client, input=[ids, [5]]) == [text, *await vectors(client, input=[5])]


async def test_base64_is_little_endian_float32(model_folder: Path) -> None:
    async with serving(model_folder) as served, httpx.AsyncClient(base_url=served.url) as client:
        (numbers,) = await vectors(client, input="one two", encoding_format="float")
        answer = (await client.post(PATH, json={"input": "one two", "encoding_format": "base64"})).json()
    raw = base64.b64decode(answer["data"][0]["embedding"])
    assert list(struct.unpack(f"<{len(numbers)}f", raw)) == numbers


async def test_pooling_and_normalize_are_mqlabs(model_folder: Path) -> None:
    async with serving(model_folder) as served, httpx.AsyncClient(base_url=served.url) as client:
        found = await vectors(client, input=[7, 8, 9], pooling="last", normalize=False)
        own = await served.state.front.embed([7, 8, 9], "last", False)
    assert found == [pytest.approx(own.values, abs=1e-6)]


REFUSED: list[tuple[dict[str, Any], str, str]] = [
    ({}, "input", "required"),
    ({"input": []}, "input", "empty list"),
    ({"input": ["a", 1]}, "input", "mixed list"),
    ({"input": ["a", ""]}, "input", "input[1]: the prompt has 0 tokens"),
    ({"input": ""}, "input", "0 tokens"),
    ({"input": [[5], [10**6]]}, "input", "input[1]: prompt holds token id 1000000"),
    ({"input": [5] * 65}, "input", "65 tokens; at most 64 fit"),
    ({"input": "word " * 400_000}, "input", "at most 64 fit"),
    ({"input": ["a"] * 2049}, "input", "at most 2048"),
    ({"input": 5}, "input", "Expected"),
    ({"input": "a", "dimensions": 4}, "dimensions", "not offered"),
    ({"input": "a", "encoding_format": "int8"}, "encoding_format", "int8"),
    ({"input": "a", "pooling": "max"}, "pooling", "max"),
    ({"input": "a", "normalize": 1}, "normalize", "bool"),
    ({"input": "a", "model": "other"}, "model", "'echo'"),
]


async def test_refusals_name_the_field_and_the_input(model_folder: Path) -> None:
    async with serving(model_folder, max_model_len=64) as served, httpx.AsyncClient(base_url=served.url, timeout=20) as client:
        for body, param, words in REFUSED:
            answer = await client.post(PATH, json=body)
            error = answer.json()["error"]
            assert (answer.status_code, error["param"]) == (404 if param == "model" else 400, param), error
            assert words in error["message"]
        assert len(await vectors(client, input=["a", "b"], dimensions=None, user="me")) == 2


async def test_many_inputs_go_to_the_engine_together_but_not_all_at_once(model_folder: Path) -> None:
    """More of them than may be open at once: they take turns, none is refused."""
    async with (
        serving(model_folder, server={"limit_concurrency": 8}, device_time=0.02) as served,
        httpx.AsyncClient(base_url=served.url, timeout=20) as client,
    ):
        assert len(await vectors(client, input=["a b"] * 100)) == 100
        assert served.stats.steps <= 60
        assert served.stats.running == 0


async def test_whoever_leaves_ends_all_of_it(model_folder: Path) -> None:
    async with serving(model_folder, device_time=0.2, max_num_seqs=1) as served, httpx.AsyncClient(base_url=served.url) as client:
        with pytest.raises(httpx.ReadTimeout):
            await client.post(PATH, json={"input": ["a"] * 50}, timeout=0.3)
        await until(lambda: is_idle(served))
        assert served.state.open == 0


def is_idle(served: Served) -> bool:
    return served.stats.running == served.stats.waiting == 0


async def test_no_model_no_vectors(model_folder: Path) -> None:
    async with serving(model_folder) as served, served.openai() as client:
        await served.client.unload()
        with pytest.raises(openai.InternalServerError) as refused:
            await client.embeddings.create(model="echo", input="x")
    assert (refused.value.status_code, refused.value.code) == (503, "model_unavailable")


async def test_they_are_counted(model_folder: Path) -> None:
    async with serving(model_folder, server={"limit_concurrency": 2}) as served, httpx.AsyncClient(base_url=served.url) as client:
        await vectors(client, input=["a b", "c", "d"])
        served.state.draining = True
        assert (await client.post(PATH, json={"input": "a"})).status_code == 503
        metrics = served.state.metrics
        assert (metrics.finished["stop"], metrics.rejections["shutting_down"]) == (3, 1)
        page = (await client.get("/metrics")).text
    for row in (
        'request_prompt_tokens_count{engine="0",model_name="echo"} 3.0',
        'request_prompt_tokens_sum{engine="0",model_name="echo"} 4.0',
    ):
        assert f"mqlab:{row}" in page
