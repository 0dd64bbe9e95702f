"""Every field of a body that the engine knows reaches it as it was meant."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import pytest
from serving import serving

from mqlab.params import StructuredOutputs
from mqlab.server.errors import ApiError
from mqlab.server.openai.fields import check_content_type
from mqlab.server.openai.protocol import ChatBody, CompletionBody, decode
from mqlab.types import Request, SamplingParams

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}


def params_of(**fields: Any) -> SamplingParams:
    completion = decode(json.dumps({"prompt": "x", **fields}).encode(), CompletionBody).params()
    chat = decode(json.dumps({"messages": [{"role": "user", "content": "x"}], "max_tokens": 16, **fields}).encode(), ChatBody).params()
    assert chat == completion, "both routes mean the same"
    return completion


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("presence_penalty", -1.5),
        ("frequency_penalty", 2),
        ("repetition_penalty", 1.3),
        ("min_p", 0.2),
        ("top_k", 5),
        ("seed", -3),
        ("n", 4),
        ("min_tokens", 3),
        ("max_tokens", 0),
        ("prompt_logprobs", -1),
    ],
)
def test_numbers_are_taken_as_they_are(field: str, value: Any) -> None:
    assert params_of(**{field: value}) == SamplingParams(**{field: value})


def test_lists_and_tables() -> None:
    found = params_of(logit_bias={"5": 100, "7": -0.5}, bad_words=["no", " way"], allowed_token_ids=[1, 2], stop_token_ids=[3])
    assert found.logit_bias == {5: 100, 7: -0.5}
    assert (found.bad_words, found.allowed_token_ids, found.stop_token_ids) == (("no", " way"), (1, 2), (3,))


@pytest.mark.parametrize(
    ("body", "meant"),
    [
        ({"response_format": {"type": "text"}}, None),
        ({"response_format": {"type": "json_object"}}, StructuredOutputs(json_object=True)),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "strict": True, "schema": SCHEMA}}},
            StructuredOutputs.of_schema(SCHEMA),
        ),
        ({"structured_outputs": {"json": SCHEMA}}, StructuredOutputs.of_schema(SCHEMA)),
        ({"structured_outputs": {"json": json.dumps(SCHEMA)}}, StructuredOutputs.of_schema(SCHEMA)),
        ({"structured_outputs": {"regex": "a+"}}, StructuredOutputs(regex="a+")),
        ({"structured_outputs": {"choice": ["yes", "no"]}}, StructuredOutputs(choice=("yes", "no"))),
        ({"structured_outputs": {"grammar": 'start: "a"'}}, StructuredOutputs(grammar='start: "a"')),
        ({"structured_outputs": {"json_object": True, "regex": None}}, StructuredOutputs(json_object=True)),
        ({"guided_json": SCHEMA}, StructuredOutputs.of_schema(SCHEMA)),
        ({"guided_regex": "a+", "response_format": {"type": "text"}}, StructuredOutputs(regex="a+")),
        ({"guided_choice": ["yes", "no"]}, StructuredOutputs(choice=("yes", "no"))),
        ({"guided_grammar": 'start: "a"'}, StructuredOutputs(grammar='start: "a"')),
    ],
)
def test_every_spelling_of_a_constraint(body: dict[str, Any], meant: StructuredOutputs | None) -> None:
    found = params_of(**body).structured_outputs
    if meant is None or meant.json is None:
        assert found == meant
    else:
        assert found is not None and found.json is not None
        assert json.loads(found.json) == json.loads(meant.json)


async def test_priority_and_salt_go_with_the_request(model_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Request] = []
    async with serving(model_folder) as served, httpx.AsyncClient(base_url=served.url) as client:
        push = served.client.push
        monkeypatch.setattr(served.client, "push", lambda request, sink: seen.append(request) or push(request, sink))
        body = {"prompt": ["a", "b"], "n": 2, "max_tokens": 1, "priority": -5, "cache_salt": "mine", "echo": True}
        assert (await client.post("/v1/completions", json=body)).status_code == 200
    assert [(request.priority, request.salt, request.epoch) for request in seen] == [(-5, "mine", 1)] * 4


def test_a_byte_order_mark_is_no_part_of_the_body() -> None:
    assert decode('\ufeff{"prompt": "x"}'.encode(), CompletionBody).prompt == "x"


@pytest.mark.parametrize(
    ("header", "value", "code"),
    [
        (b"content-type", b"application/x-www-form-urlencoded", "invalid_content_type"),
        (b"content-encoding", b"gzip", "invalid_content_encoding"),
    ],
)
def test_a_body_that_is_sent_as_something_else_is_refused_by_that_name(header: bytes, value: bytes, code: str) -> None:
    with pytest.raises(ApiError, match=value.decode()) as refusal:
        check_content_type({"headers": [(header, value)]})
    assert (refusal.value.status, refusal.value.code) == (400, code)


def test_a_body_may_say_that_it_is_json_and_not_compressed() -> None:
    check_content_type({"headers": [(b"content-type", b"application/json; charset=utf-8"), (b"content-encoding", b"identity")]})
