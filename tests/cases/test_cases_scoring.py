"""What clients of the HTTP routes read: prompts scored, chats told with logprobs, stop strings and forms in every shape.

C54: echo. C79: stops. C83: logprobs of chats. C87: answers of a given form. Also C42 and C61 as far as a body can ask for them.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from itertools import accumulate
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio
import torch
import transformers
from engines import at_rest, client_of
from serving import Served, served_by

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
TALK = [{"role": "user", "content": "Name two animals. 🙂"}]
TEXTS = ["The sun rises in the east", "naïve 🙂🙂 and 你好, 世界", " two  spaces and\n\na line", "a<|im_end|>b", "x"]
pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def served(small: Path) -> AsyncIterator[Served]:
    await asyncio.to_thread(int)  # the loop's thread for such things outlives the test that is the first to want it
    async with served_by(client_of(small, "aio", max_model_len=256, num_kv_blocks=64, num_scheduler_steps=4)) as server:
        yield server
        assert at_rest(await server.client.stats())


@pytest_asyncio.fixture(loop_scope="module")
async def http(served: Served) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=served.url, timeout=60) as client:
        yield client


async def ask(http: httpx.AsyncClient, path: str = COMPLETIONS, **body: Any) -> dict[str, Any]:
    answer = await http.post(path, json={"temperature": 0, "ignore_eos": True, **body})
    assert answer.status_code == 200, answer.text
    return answer.json()


async def streamed(http: httpx.AsyncClient, path: str = COMPLETIONS, **body: Any) -> list[dict[str, Any]]:
    """The choices of a stream's events."""
    asked = {"temperature": 0, "ignore_eos": True, **body, "stream": True}
    async with http.stream("POST", path, json=asked) as response:
        events = [json.loads(line[6:]) async for line in response.aiter_lines() if line.startswith("data: {")]
    return [choice for event in events for choice in event["choices"]]


async def refused(http: httpx.AsyncClient, field: str, path: str = COMPLETIONS, **body: Any) -> str:
    """The message of a refusal that names the field, streamed or not."""
    answers = [await http.post(path, json={**body, "stream": stream}) for stream in (False, True)]
    assert [answer.status_code for answer in answers] == [400, 400], answers[0].text
    assert answers[0].json() == answers[1].json()
    assert answers[0].json()["error"]["param"] == field
    return answers[0].json()["error"]["message"]


class Reference:
    """Plain forward passes of transformers."""

    def __init__(self, folder: Path) -> None:
        self._model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        self.tokenizer = transformers.AutoTokenizer.from_pretrained(folder)

    @torch.inference_mode()
    def logprobs(self, ids: list[int]) -> list[float]:
        """Of all but the first."""
        rows = self._model(torch.tensor([ids])).logits[0].log_softmax(-1)
        return [float(row[token]) for row, token in zip(rows, ids[1:], strict=False)]


@pytest.fixture(scope="module")
def reference(small: Path) -> Reference:
    return Reference(small)


# --- C54


@pytest.mark.parametrize("width", [0, 1, 5])
@pytest.mark.parametrize("new", [0, 1])
async def test_a_prompt_is_scored(http: httpx.AsyncClient, reference: Reference, new: int, width: int) -> None:
    body = {"prompt": TEXTS, "max_tokens": new, "echo": True, "logprobs": width}
    answer = await ask(http, **body)
    assert answer["usage"]["completion_tokens"] == new * len(TEXTS)
    for text, choice in zip(TEXTS, answer["choices"], strict=True):
        ids, scores = reference.tokenizer(text).input_ids, choice["logprobs"]
        assert choice["text"] == "".join(scores["tokens"])
        assert choice["text"].startswith(text) and (new or choice["text"] == text)
        assert {len(column) for column in scores.values()} == {len(ids) + new}
        assert scores["text_offset"] == [0, *accumulate(map(len, scores["tokens"][:-1]))]
        assert scores["token_logprobs"][0] is None and scores["top_logprobs"][0] is None
        assert sum(scores["token_logprobs"][1 : len(ids)]) == pytest.approx(sum(reference.logprobs(ids)), abs=1e-3)
        assert all(max(1, width) <= len(top) <= width + 1 for top in scores["top_logprobs"][1:])
    events = [one for one in await streamed(http, **body) if one["index"] == 1 and one["logprobs"]]
    joined = {column: [value for one in events for value in one["logprobs"][column]] for column in answer["choices"][1]["logprobs"]}
    assert alike(joined, answer["choices"][1]["logprobs"])


def alike(one: Any, other: Any) -> bool:
    """Equal but for rounding."""
    if isinstance(one, float) and isinstance(other, float):
        return abs(one - other) < 1e-3
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(alike(value, other[key]) for key, value in one.items())
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(alike, one, other))
    return one == other


async def test_what_an_evaluation_harness_asks(http: httpx.AsyncClient, reference: Reference) -> None:
    """lm-evaluation-harness sends contexts with continuations as ids, and reads ``[context:-1]`` of each choice (its TemplateAPI)."""
    pairs = [("The sun rises in the", " east"), ("One, two,", " three, four"), ("a", "b")]
    encoded = [(reference.tokenizer(one).input_ids, reference.tokenizer(two).input_ids) for one, two in pairs]
    body = {"prompt": [one + two for one, two in encoded], "max_tokens": 1, "logprobs": 1, "seed": 1234, "echo": True}
    answer = await ask(http, **body, model=None)
    for (context, continuation), choice in zip(encoded, answer["choices"], strict=True):
        scores = choice["logprobs"]
        read = scores["token_logprobs"][len(context) : -1]
        assert sum(read) == pytest.approx(sum(reference.logprobs(context + continuation)[-len(continuation) :]), abs=1e-3)
        tops = scores["top_logprobs"][len(context) : -1]
        assert all(max(top.values()) >= value for top, value in zip(tops, read, strict=True))
        assert scores["tokens"][len(context) : -1] == [reference.tokenizer.decode([token]) for token in continuation]


async def test_scores_are_the_same_for_every_choice_and_on_a_hit(http: httpx.AsyncClient) -> None:
    body: dict[str, Any] = {"prompt": [TEXTS[0] * 9], "max_tokens": 3, "echo": True, "logprobs": 2, "prompt_logprobs": 1, "n": 3}
    first, second = [(await ask(http, **body))["choices"] for _ in range(2)]
    for choice in (*first, *second):
        assert choice["text"] == first[0]["text"]
        assert choice["logprobs"]["token_logprobs"][1:] == pytest.approx(first[0]["logprobs"]["token_logprobs"][1:], abs=1e-3)
        own = [next(iter(one.values()))["logprob"] for one in choice["prompt_logprobs"][1:]]
        assert own == pytest.approx(choice["logprobs"]["token_logprobs"][1 : len(own) + 1], abs=1e-3)


# --- C83


@pytest.mark.parametrize("asked", [None, 0, 3, 20])
async def test_logprobs_of_a_chat_are_read_by_the_official_client(served: Served, http: httpx.AsyncClient, asked: int | None) -> None:
    top = {} if asked is None else {"top_logprobs": asked}
    body: Any = {"messages": TALK, "max_tokens": 7, "temperature": 0, "logprobs": True, "extra_body": {"ignore_eos": True}, **top}
    async with served.openai() as client:
        model = (await client.models.list()).data[0].id
        answer = await client.chat.completions.create(model=model, **body)
        chunks = [one async for one in await client.chat.completions.create(model=model, stream=True, **body)]
    (choice,) = answer.choices
    assert choice.logprobs is not None and choice.logprobs.content is not None and answer.usage is not None
    content = choice.logprobs.content
    assert len(content) == answer.usage.completion_tokens == 7
    for one in content:
        assert len(one.top_logprobs) == (asked or 0)
        likeliest = one.top_logprobs[0] if asked else one
        assert (likeliest.token, likeliest.logprob) == (one.token, one.logprob)
    assert b"".join(bytes(one.bytes or ()) for one in content).decode(errors="replace") == choice.message.content
    told = [one for chunk in chunks for each in chunk.choices if each.logprobs for one in each.logprobs.content or ()]
    assert [(one.token, one.bytes) for one in told] == [(one.token, one.bytes) for one in content]
    assert [one.logprob for one in told] == pytest.approx([one.logprob for one in content], abs=1e-3)


async def test_logprobs_of_a_chat_that_cannot_be_had(http: httpx.AsyncClient) -> None:
    for body in ({"logprobs": True, "top_logprobs": 21}, {"top_logprobs": 2}, {"logprobs": 3}):
        await refused(http, "logprobs" if "top_logprobs" not in body else "top_logprobs", CHAT, messages=TALK, **body)
    for body in ({}, {"logprobs": False}, {"logprobs": None, "top_logprobs": None}):
        answer = await ask(http, CHAT, messages=TALK, max_tokens=2, **body)
        assert answer["choices"][0]["logprobs"] is None


# --- C79


async def test_stops_in_every_shape(http: httpx.AsyncClient) -> None:
    body: dict[str, Any] = {"prompt": TEXTS[0], "max_tokens": 20}
    plain = (await ask(http, **body))["choices"][0]
    text = plain["text"]
    for stop in ([], None, "x" * 10_000, ["no such thing"] * 5, TEXTS[0], [TEXTS[0][-5:], "rises in"]):
        assert (await ask(http, **body, stop=stop))["choices"][0] == plain, stop
    seventh = [text[i : i + 4] for i in range(7, 27, 4)]
    cut = min(text.find(one) for one in seventh)
    many = (await ask(http, **body, stop=seventh))["choices"][0]
    assert (many["text"], many["finish_reason"]) == (text[:cut], "stop")
    assert many["stop_reason"] in seventh
    for stop in ("", [""], ["a", ""], 7, [7], {"a": 1}, [["a"]]):
        await refused(http, "stop", **body, stop=stop)


# --- C42, C61


async def test_a_neighbour_of_refused_bodies_is_not_disturbed(http: httpx.AsyncClient) -> None:
    body: dict[str, Any] = {"prompt": TEXTS[1], "max_tokens": 60}
    plain = await ask(http, **body)
    runs = asyncio.create_task(ask(http, **body))
    for field, value in [
        ("logit_bias", {"49152": 1}),
        ("logit_bias", {"-1": 1}),
        ("top_p", 0),
        ("top_p", 1.1),
        ("min_p", 1.5),
        ("top_k", -2),
    ]:
        await refused(http, field, prompt="x", **{field: value})
    forced = await ask(http, prompt="x", max_tokens=3, logit_bias={"49151": 100}, logprobs=0)
    assert len(set(forced["choices"][0]["logprobs"]["tokens"])) == 1
    assert (await runs)["choices"] == plain["choices"]


# --- C87

SCHEMA = {
    "type": "object",
    "properties": {"kind": {"enum": ["cat", "dog"]}, "age": {"type": "integer", "minimum": 0, "maximum": 99}},
    "required": ["kind", "age"],
    "additionalProperties": False,
}
WRAPPED = {"type": "json_schema", "json_schema": {"name": "pet", "schema": SCHEMA, "strict": True}}


async def test_json_is_whole_or_said_to_be_cut(http: httpx.AsyncClient) -> None:
    """Five at once beside a plain stream, at each of three lengths."""
    plain = await ask(http, prompt=TEXTS[0], max_tokens=60)
    for length in (5, 60, 200):
        beside = asyncio.create_task(ask(http, prompt=TEXTS[0], max_tokens=60))
        forms = [WRAPPED, WRAPPED, {"type": "json_object"}, {"type": "json_object"}, WRAPPED]
        how: list[dict[str, Any]] = [
            {"temperature": 1, "seed": seed, "max_tokens": length, "response_format": form} for seed, form in enumerate(forms)
        ]
        answers = await asyncio.gather(*(ask(http, CHAT, messages=TALK, **{**one, "ignore_eos": False}) for one in how))
        streams = await asyncio.gather(*(streamed(http, CHAT, messages=TALK, **{**one, "ignore_eos": False}) for one in how))
        for form, answer, events in zip(forms, answers, streams, strict=True):
            (choice,) = answer["choices"]
            text = choice["message"]["content"]
            assert "".join(event["delta"].get("content", "") for event in events) == text
            assert events[-1]["finish_reason"] == choice["finish_reason"]
            if choice["finish_reason"] == "stop":
                value = json.loads(text)
                assert isinstance(value, dict) and (form != WRAPPED or value["kind"] in ("cat", "dog"))
            else:
                assert (choice["finish_reason"], answer["usage"]["completion_tokens"]) == ("length", length)
        assert all(answer["choices"][0]["finish_reason"] == "stop" for answer in (answers[0], answers[1], answers[4])) or length == 5
        assert (await beside)["choices"] == plain["choices"]


async def test_forms_that_cannot_be_had_are_refused(http: httpx.AsyncClient) -> None:
    bad = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "objct"}}}
    assert "objct" in (await http.post(CHAT, json={"messages": TALK, "response_format": bad})).json()["error"]["message"]
    await refused(http, "response_format", CHAT, messages=TALK, response_format=bad)
    await refused(http, "guided_regex", prompt="x", guided_regex="(")
    enum = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"enum": [f"value {i}" for i in range(2000)]}}}
    answer = await ask(http, CHAT, messages=TALK, response_format=enum, max_tokens=30, ignore_eos=False)
    assert json.loads(answer["choices"][0]["message"]["content"]).startswith("value ")


@pytest.mark.parametrize(
    "more", [{}, {"ignore_eos": True}, {"include_stop_str_in_output": True, "ignore_eos": True}, {"skip_special_tokens": False}], ids=str
)
async def test_a_text_ends_where_its_form_does(http: httpx.AsyncClient, more: dict[str, Any]) -> None:
    """Also where the end token is asked to be ignored: its text is no part of the form's."""
    body = {
        "prompt": "x",
        "temperature": 1,
        "max_tokens": 30,
        "guided_regex": "[a-z]{3}[0-9]{2}",
        "logprobs": 1,
        **{"ignore_eos": False, **more},
    }
    for seed in range(4):
        answer = await ask(http, **body, seed=seed)
        (choice,) = answer["choices"]
        assert re.fullmatch("[a-z]{3}[0-9]{2}", choice["text"]), choice
        assert (choice["finish_reason"], "".join(choice["logprobs"]["tokens"])) == ("stop", choice["text"])
        assert len(choice["logprobs"]["tokens"]) == answer["usage"]["completion_tokens"] <= 6
        events = await streamed(http, **body, seed=seed)
        assert "".join(event["text"] for event in events) == choice["text"]
