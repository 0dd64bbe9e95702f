"""OpenAI's own client, as applications use it, against ``mqlab serve`` in a process of its own."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from serving import Process

TALK: Any = [{"role": "user", "content": "What is the capital of France? Answer briefly."}]
WEATHER: Any = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather of a city",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "maxLength": 12}, "unit": {"enum": ["celsius", "fahrenheit"]}},
            "required": ["city", "unit"],
            "additionalProperties": False,
        },
    },
}


@pytest.fixture
def client(echo: Process) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{echo.url}/v1", api_key="none", max_retries=0, timeout=60) as client:
        yield client


@pytest.fixture
def smart(smollm: Process) -> Iterator[openai.OpenAI]:
    """Of a model that says things of its own."""
    with openai.OpenAI(base_url=f"{smollm.url}/v1", api_key="none", max_retries=0, timeout=100) as client:
        yield client


def test_completions_and_chats_whole_and_streamed(client: openai.OpenAI) -> None:
    (model,) = client.models.list()
    whole = client.completions.create(model=model.id, prompt="one two three", max_tokens=3)
    assert (whole.choices[0].text, whole.choices[0].finish_reason) == ("one two three", "length")
    with client.completions.create(model=model.id, prompt="one two three", max_tokens=3, stream=True) as stream:
        assert [chunk.choices[0].text for chunk in stream if chunk.choices[0].text] == ["one", " two", " three"]
    chat = client.chat.completions.create(model=model.id, messages=TALK, max_completion_tokens=30)
    options: Any = {"stream": True, "stream_options": {"include_usage": True}}
    chunks = list(client.chat.completions.create(model=model.id, messages=TALK, max_completion_tokens=30, **options))
    assert chunks[0].choices[0].delta.role == "assistant"
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == chat.choices[0].message.content and text.startswith("system")
    assert chunks[-1].choices == [] and chunks[-1].usage is not None and chat.usage is not None
    assert chunks[-1].usage.model_dump() == chat.usage.model_dump()


def test_the_streaming_helper_gathers_a_chat(client: openai.OpenAI) -> None:
    with client.chat.completions.stream(model="echo", messages=TALK) as stream:
        kinds = {event.type for event in stream}
        final = stream.get_final_completion()
    assert {"chunk", "content.delta"} <= kinds
    assert final.choices[0].finish_reason == "stop" and (final.choices[0].message.content or "").startswith("system")


def test_embeddings(client: openai.OpenAI) -> None:
    plain = client.embeddings.create(model="echo", input=["a cat", "a dog"], encoding_format="float")
    packed = client.embeddings.create(model="echo", input=["a cat", "a dog"])  # base64, which the client asks for itself
    assert [one.index for one in plain.data] == [0, 1] and plain.data[0].embedding != plain.data[1].embedding
    assert packed.data[1].embedding == pytest.approx(plain.data[1].embedding, rel=1e-6)
    assert plain.usage.prompt_tokens == 4


async def test_a_hundred_streams_of_one_asynchronous_client(echo: Process) -> None:
    async def ask(client: openai.AsyncOpenAI, index: int) -> str:
        prompt = f"number {index}"
        stream = await client.completions.create(model="echo", prompt=prompt, max_tokens=60, stream=True, stop=f"{index}n")
        return "".join([chunk.choices[0].text async for chunk in stream])

    async with openai.AsyncOpenAI(base_url=f"{echo.url}/v1", api_key="none", max_retries=0, timeout=60) as client:
        answers = await asyncio.gather(*(ask(client, index) for index in range(100)))
    assert answers == [f"number {index}"[: -len(str(index))] for index in range(100)]


async def test_a_stream_that_is_left_does_not_spoil_the_connection(echo: Process) -> None:
    async with openai.AsyncOpenAI(base_url=f"{echo.url}/v1", api_key="none", max_retries=0, timeout=60) as client:
        options: Any = {"extra_body": {"ignore_eos": True}, "stream": True}
        async with await client.completions.create(model="echo", prompt="a b c", max_tokens=5000, **options) as stream:
            async for _ in stream:
                break
        again = await client.completions.create(model="echo", prompt="a b c", max_tokens=3)
    assert again.choices[0].text == "a b c"


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"model": "nobody"}, openai.NotFoundError),
        ({"temperature": 3}, openai.BadRequestError),
        ({"max_tokens": -1}, openai.BadRequestError),
        ({"messages": "hello"}, openai.BadRequestError),
    ],
)
def test_errors_are_openais(client: openai.OpenAI, changes: dict[str, Any], error: type[openai.APIStatusError]) -> None:
    asked: dict[str, Any] = {"model": "echo", "messages": TALK, **changes}
    with pytest.raises(error) as refused:
        client.chat.completions.create(**asked)
    assert isinstance(refused.value.body, dict) and refused.value.body["message"]


@pytest.mark.full
@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "get_weather"}}])
def test_tools_are_called_whole_and_streamed_alike(smart: openai.OpenAI, choice: Any) -> None:
    asked: Any = {"model": "smollm2-135m", "messages": TALK, "tools": [WEATHER], "tool_choice": choice, "temperature": 0, "max_tokens": 200}
    message = smart.chat.completions.create(**asked).choices[0].message
    calls: Any = [call.function for call in message.tool_calls or () if call.type == "function"]
    assert calls and all(set(json.loads(call.arguments)) == {"city", "unit"} for call in calls)
    streamed: dict[int, list[str]] = {}
    for chunk in smart.chat.completions.create(**asked, stream=True):
        for part in chunk.choices[0].delta.tool_calls or ():
            name, arguments = streamed.get(part.index, ["", ""])
            assert part.function is not None
            streamed[part.index] = [name + (part.function.name or ""), arguments + (part.function.arguments or "")]
    assert [*streamed.values()] == [["get_weather", call.arguments] for call in calls]
    called: Any = message.tool_calls[0] if message.tool_calls else None
    answered: Any = [*TALK, message, {"role": "tool", "tool_call_id": called.id, "content": '{"celsius": 21}'}]
    assert smart.chat.completions.create(model="smollm2-135m", messages=answered, max_tokens=8).choices[0].message.content


@pytest.mark.full
def test_structured_answers_keep_their_schema(smart: openai.OpenAI) -> None:
    schema: Any = {
        "type": "object",
        "properties": {"city": {"enum": ["Paris", "Rome"]}},
        "required": ["city"],
        "additionalProperties": False,
    }
    wanted: Any = {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema, "strict": True}}
    answer = smart.chat.completions.create(model="smollm2-135m", messages=TALK, response_format=wanted, max_tokens=60, temperature=0)
    assert json.loads(answer.choices[0].message.content or "")["city"] in ("Paris", "Rome")


@pytest.mark.full
def test_a_model_says_the_same_over_every_way(smart: openai.OpenAI) -> None:
    asked: Any = {"model": "smollm2-135m", "messages": TALK, "max_tokens": 24, "temperature": 0, "logprobs": True, "top_logprobs": 2}
    whole = smart.chat.completions.create(**asked).choices[0]
    chunks = [chunk.choices[0] for chunk in smart.chat.completions.create(**asked, stream=True)]
    assert "".join(one.delta.content or "" for one in chunks) == whole.message.content and "Paris" in (whole.message.content or "")
    assert whole.logprobs is not None and whole.logprobs.content is not None
    streamed = [token.logprob for one in chunks if one.logprobs for token in one.logprobs.content or ()]
    assert streamed == pytest.approx([token.logprob for token in whole.logprobs.content], abs=1e-4)
