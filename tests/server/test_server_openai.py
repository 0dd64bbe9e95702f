"""OpenAI's own Python client against the server."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import openai
import pytest
from serving import Served, serving

HELLO = "Hello world, this is"
TALK: list[Any] = [{"role": "user", "content": "Say hi"}]


async def test_a_chat_is_answered(model_folder: Path) -> None:
    async with serving(model_folder) as served, served.openai() as client:
        answer = await client.chat.completions.create(model="echo", messages=TALK, max_tokens=4)
        assert answer.choices[0].message.role == "assistant"
        assert answer.choices[0].message.content
        assert answer.usage is not None
        assert answer.usage.total_tokens == answer.usage.prompt_tokens + 4


@pytest.mark.parametrize("topology", ["inproc", "v1"])
async def test_a_completion_whole_and_streamed_is_the_same(model_folder: Path, topology: str) -> None:
    async with serving(model_folder, topology) as served, served.openai() as client:
        whole = await client.completions.create(model="echo", prompt=HELLO, max_tokens=5)
        chunks = [chunk async for chunk in await client.completions.create(model="echo", prompt=HELLO, max_tokens=5, stream=True)]
    assert whole.choices[0].text == HELLO
    assert whole.choices[0].finish_reason == "length"
    assert "".join(chunk.choices[0].text for chunk in chunks) == HELLO
    assert chunks[-1].choices[0].finish_reason == "length"


async def test_a_chat_streamed_is_the_same_as_whole(model_folder: Path) -> None:
    async with serving(model_folder) as served, served.openai() as client:
        whole = await client.chat.completions.create(model="echo", messages=TALK, max_completion_tokens=20)
        stream = await client.chat.completions.create(model="echo", messages=TALK, max_completion_tokens=20, stream=True)
        texts = [chunk.choices[0].delta.content async for chunk in stream]
    assert "".join(text or "" for text in texts) == whole.choices[0].message.content


async def test_the_synchronous_client_works_too(model_folder: Path) -> None:
    def ask(served: Served) -> str:
        with openai.OpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=0) as client:
            stream = client.completions.create(model="echo", prompt=HELLO, max_tokens=5, stream=True)
            return "".join(chunk.choices[0].text for chunk in stream)

    async with serving(model_folder) as served:
        assert await asyncio.to_thread(ask, served) == HELLO


async def test_several_prompts_and_choices_keep_their_order(model_folder: Path) -> None:
    prompts = ["Hello world", "one two three", "abc"]
    async with serving(model_folder) as served, served.openai() as client:
        answer = await client.completions.create(model="echo", prompt=prompts, n=2, max_tokens=2)
    texts = [choice.text for choice in answer.choices]
    assert [choice.index for choice in answer.choices] == list(range(6))
    assert texts == ["Hello world"] * 2 + ["one two"] * 2 + ["abcabc"] * 2
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (2 + 3 + 1, 12)


async def test_token_ids_are_prompts(model_folder: Path) -> None:
    async with serving(model_folder) as served, served.openai() as client:
        ids = await served.state.front.encode(HELLO)
        one = await client.completions.create(model="echo", prompt=ids, max_tokens=5)
        many = await client.completions.create(model="echo", prompt=[ids, ids[:1]], max_tokens=1)
    assert one.choices[0].text == HELLO
    assert [choice.text for choice in many.choices] == ["Hello", "Hello"]


async def test_a_stop_string_ends_the_text_before_it(model_folder: Path) -> None:
    async with serving(model_folder) as served, served.openai() as client:
        whole = await client.completions.create(model="echo", prompt=HELLO, max_tokens=50, stop=["rld, t"])
        stream = await client.completions.create(model="echo", prompt=HELLO, max_tokens=50, stop="rld, t", stream=True)
        text = "".join([chunk.choices[0].text async for chunk in stream])
    assert whole.choices[0].text == text == "Hello wo"
    assert whole.choices[0].finish_reason == "stop"
    assert whole.choices[0].model_extra == {"stop_reason": "rld, t"}


async def test_vllm_extras_reach_the_engine(model_folder: Path) -> None:
    async with serving(model_folder) as served, served.openai() as client:
        ids = await served.state.front.encode(HELLO)
        stopped = await client.completions.create(model="echo", prompt=ids, max_tokens=9, extra_body={"stop_token_ids": [ids[2]]})
        ended = await client.completions.create(model="echo", prompt=[2, 5], max_tokens=9)
        ignored = await client.completions.create(model="echo", prompt=[2, 5], max_tokens=9, extra_body={"ignore_eos": True, "top_k": 5})
    assert stopped.choices[0].finish_reason == "stop"
    assert stopped.choices[0].model_extra == {"stop_reason": ids[2]}
    assert ended.usage is not None
    assert ended.usage.completion_tokens == 1
    assert ignored.usage is not None
    assert ignored.usage.completion_tokens == 9


async def test_defaults_are_those_of_openai(model_folder: Path) -> None:
    async with serving(model_folder, max_model_len=64) as served, served.openai() as client:
        completion = await client.completions.create(model="echo", prompt=HELLO)
        chat = await client.chat.completions.create(model="echo", messages=TALK, extra_body={"ignore_eos": True})
    assert completion.usage is not None
    assert completion.usage.completion_tokens == 16
    assert chat.usage is not None
    assert chat.usage.total_tokens == 64
    assert chat.choices[0].finish_reason == "length"


async def test_content_in_parts_is_the_same_as_a_string(model_folder: Path) -> None:
    parts: list[Any] = [{"role": "user", "content": [{"type": "text", "text": "Say hi"}]}]
    async with serving(model_folder) as served, served.openai() as client:
        plain = await client.chat.completions.create(model="echo", messages=TALK, max_tokens=20)
        split = await client.chat.completions.create(model="echo", messages=parts, max_tokens=20)
    assert split.choices == plain.choices
    assert split.usage == plain.usage


async def test_models_are_listed_and_found(model_folder: Path) -> None:
    async with serving(model_folder, name="org/echo") as served, served.openai() as client:
        assert [model.id async for model in client.models.list()] == ["org/echo"]
        assert (await client.models.retrieve("org/echo")).id == "org/echo"
        with pytest.raises(openai.NotFoundError):
            await client.models.retrieve("other")


async def test_errors_raise_the_clients_own_classes(model_folder: Path) -> None:
    async with serving(model_folder) as served, served.openai() as client:
        with pytest.raises(openai.NotFoundError) as unknown:
            await client.completions.create(model="other", prompt="x")
        with pytest.raises(openai.BadRequestError) as wrong:
            await client.completions.create(model="echo", prompt="x", temperature=3)
        with pytest.raises(openai.BadRequestError):
            await client.completions.create(model="echo", prompt="x", temperature=3, stream=True)
    assert (unknown.value.code, unknown.value.param) == ("model_not_found", "model")
    assert (wrong.value.param, wrong.value.type) == ("temperature", "invalid_request_error")
    assert "[0, 2]" in wrong.value.message
