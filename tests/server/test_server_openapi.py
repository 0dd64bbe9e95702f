"""The OpenAPI document: it names every route, and the server keeps to it, whatever it is sent (schemathesis)."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx
import jsonschema
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.errors import Unsatisfiable
from schemathesis import GenerationMode
from schemathesis.specs.openapi.checks import positive_data_acceptance
from serving import echo_server, serving

from mqlab.config import ServerConfig
from mqlab.server.app import build_routes
from mqlab.server.operate.openapi import document
from mqlab.server.operate.operations import OPERATIONS

TALK = [{"role": "user", "content": "hi"}]
PROMPTS: list[dict[str, Any]] = [{}, {"n": 2}, {"logprobs": 2}, {"echo": True, "logprobs": 1, "max_tokens": 0}, {"prompt_logprobs": 1}]
CHATS: list[dict[str, Any]] = [{}, {"n": 2}, {"logprobs": True, "top_logprobs": 2}, {"prompt_logprobs": 1}]
GOOD = [("/v1/completions", {"prompt": ["Hello wörld", "a"], "max_tokens": 3, **more}) for more in PROMPTS]
GOOD += [("/v1/chat/completions", {"messages": TALK, "max_tokens": 3, **more}) for more in CHATS]
GOOD += [("/v1/embeddings", {"input": ["a", "b"], "encoding_format": form}) for form in ("float", "base64")]
GOOD += [("/tokenize", {"prompt": "a", "return_token_strs": True}), ("/tokenize", {"messages": TALK}), ("/detokenize", {"tokens": [5]})]

EVENTS = {"/v1/completions": "components/schemas/CompletionChunk", "/v1/chat/completions": "components/schemas/ChatChunk"}

SELDOM_RIGHT = {
    *("model", "n", "structured_outputs", "response_format", "allowed_token_ids", "stop_token_ids", "logit_bias", "prompt_logprobs"),
    *("stream_options", "best_of", "min_tokens", "tools", "tool_choice", "continue_final_message", "top_logprobs", "documents"),
    *("guided_json", "guided_regex", "guided_choice", "guided_grammar", "reasoning_effort", "chat_template_kwargs"),
}
TOKEN = {"type": "integer", "minimum": 0, "maximum": 49151}
TEXT = {"type": "string", "pattern": "^[A-Za-z0-9 .,<>_éß]{1,50}$"}
TEXTS = {"anyOf": [TEXT, *({"type": "array", "items": one, "minItems": 1, "maxItems": 4} for one in (TEXT, TOKEN))]}
MESSAGE = {
    "type": "object",
    "properties": {"role": {"enum": ["system", "user", "assistant"]}, "content": TEXT},
    "required": ["role", "content"],
    "additionalProperties": False,
}
SMALL: dict[str, Any] = {
    "messages": {"type": "array", "items": MESSAGE, "minItems": 1, "maxItems": 3},
    "prompt": TEXTS,
    "input": TEXTS,
    "tokens": {"type": "array", "items": TOKEN},
    "max_tokens": {"type": "integer", "minimum": 0, "maximum": 50},
    "max_completion_tokens": {"type": "integer", "minimum": 0, "maximum": 50},
}
BOTH, GOOD_ONLY = (GenerationMode.POSITIVE, GenerationMode.NEGATIVE), (GenerationMode.POSITIVE,)
NOT_CHECKED: list[Any] = [positive_data_acceptance]
"""A schema says what a value looks like, not that it names a token or fits."""


async def test_it_has_every_route_and_no_other(model_folder: Path) -> None:
    async with serving(model_folder, server={"enable_control": True}) as served:
        routes = build_routes(served.state)
        async with httpx.AsyncClient(base_url=served.url) as client:
            paths = (await client.get("/openapi.json")).json()["paths"]
    told = {(path, method.upper()) for path, methods in paths.items() for method in methods}
    here = {(route.path.replace(":path", ""), method) for route in routes for method in route.methods or ()}
    assert told == {(path, method) for path, method in here if method != "HEAD"} - {("/openapi.json", "GET")}


def test_keys_are_in_it_where_the_server_has_some() -> None:
    plain, locked = document(ServerConfig()), document(ServerConfig(api_key=("k",)))
    assert "401" not in json.dumps(plain["paths"])
    assert locked["security"] == [{"key": []}]
    assert locked["paths"]["/health"]["get"]["security"] == []
    assert "401" in locked["paths"]["/v1/completions"]["post"]["responses"]


async def test_answers_and_events_are_as_it_says(model_folder: Path) -> None:
    async with serving(model_folder) as served, httpx.AsyncClient(base_url=served.url) as client:
        described = (await client.get("/openapi.json")).json()
        for path, body in GOOD:
            response = await client.post(path, json=body)
            assert response.status_code == 200, response.text
            place = path.replace("/", "~1")
            validator(described, f"paths/{place}/post/responses/200/content/application~1json/schema").validate(response.json())
            if path in EVENTS and "prompt_logprobs" not in body:
                more = {"stream": True, "stream_options": {"include_usage": True}}
                check_events(validator(described, EVENTS[path]), (await client.post(path, json={**body, **more})).text)


def validator(described: dict[str, Any], place: str) -> jsonschema.Draft202012Validator:
    """Of the schema at a place of the document."""
    return jsonschema.Draft202012Validator({**described, "$ref": f"#/{place}"})


def check_events(event_validator: jsonschema.Draft202012Validator, stream: str) -> None:
    *events, end, rest = stream.split("\n\n")
    assert (end, rest) == ("data: [DONE]", "")
    for event in events:
        event_validator.validate(json.loads(event.removeprefix("data: ")))


def breaches(url: str, described: dict[str, Any], count: int, modes: Sequence[GenerationMode]) -> Iterator[str]:
    """What the server does against its document, or badly: so many requests of each mode for each operation. With good ones only, each
    must be answered."""
    for found in schemathesis.openapi.from_dict(described).get_all_operations():
        operation = found.ok()
        for mode in modes:
            try:
                explore(operation, mode, count, url, all_good=modes == GOOD_ONLY)
            except Unsatisfiable:  # nothing can be wrong with a request that has neither body nor parameters
                assert (mode is GenerationMode.NEGATIVE and operation.method == "get") or operation.path == "/ping"
            except BaseExceptionGroup as errors:
                yield from (f"{operation.method} {operation.path}, {mode.value}: {error}" for error in errors.exceptions)
            except Exception as error:
                yield f"{operation.method} {operation.path}, {mode.value}: {error!r}"


def explore(operation: Any, mode: GenerationMode, count: int, url: str, all_good: bool) -> None:
    @settings(
        max_examples=count,
        deadline=None,
        database=None,
        derandomize=True,
        suppress_health_check=list(HealthCheck),
        phases=(Phase.generate,),
    )
    @given(case=operation.as_strategy(generation_mode=mode))
    def check(case: Any) -> None:
        response = case.call(base_url=url, timeout=30)
        assert response.status_code == 200 or not all_good, f"{case.body!r} got {response.text}"
        case.validate_response(response, excluded_checks=NOT_CHECKED)

    check()


def harmless_document() -> dict[str, Any]:
    """A document of the routes that take a body, without the fields that are seldom right at random, and the others with small values."""
    described = document(ServerConfig())
    described["paths"] = {path: ways for path, ways in described["paths"].items() if "requestBody" in ways.get("post", {})}
    for name, schema in described["components"]["schemas"].items():
        if name.endswith("Body"):
            for field in SELDOM_RIGHT & schema["properties"].keys():
                del schema["properties"][field]
            schema["properties"] |= {field: small for field, small in SMALL.items() if field in schema["properties"]}
            schema["additionalProperties"] = False
    described["components"]["schemas"]["CompletionBody"]["properties"]["logprobs"] = {"type": "integer", "minimum": 0, "maximum": 5}
    tokenize = described["components"]["schemas"]["TokenizeBody"]
    tokenize["properties"] = {"prompt": TEXT, "add_special_tokens": {"type": "boolean"}, "return_token_strs": {"type": "boolean"}}
    tokenize["required"] = ["prompt"]
    return described


async def explored(model_folder: Path, topology: str, odd: int, good: int) -> list[str]:
    """What went wrong with anything at all, and with what must be taken."""
    anything, harmless = document(ServerConfig(enable_control=True)), harmless_document()
    async with serving(model_folder, topology, server={"enable_control": True}, max_model_len=1024) as served:
        found = await asyncio.to_thread(lambda: list(breaches(served.url, anything, odd, BOTH)))
        await served.client.load("echo", path=str(model_folder))
        found += await asyncio.to_thread(lambda: list(breaches(served.url, harmless, good, GOOD_ONLY)))
        assert (await served.client.check()).ok
        async with served.openai() as client:
            assert (await client.completions.create(model="echo", prompt="Hello", max_tokens=1)).choices[0].text == "Hello"
    return found


async def test_nothing_that_is_sent_breaks_it(model_folder: Path) -> None:
    assert await explored(model_folder, "aio", odd=3, good=6) == []


@pytest.mark.full
@pytest.mark.timeout(900)
@pytest.mark.parametrize("topology", ["aio", "v1"])
async def test_whatever_is_sent_does_not_break_it(model_folder: Path, topology: str) -> None:
    assert await explored(model_folder, topology, odd=60, good=120) == []


@pytest.mark.full
@pytest.mark.timeout(300)
def test_its_own_program_finds_nothing_either(model_folder: Path, tmp_path: Path) -> None:
    """With what it tries by rule: each value at its bounds, each parameter left out, each method that is not told of."""
    program = [str(Path(sys.executable).with_name("schemathesis")), "run", "--phases=coverage,fuzzing", "--max-examples=30"]
    with echo_server(model_folder, tmp_path, max_model_len=1024) as process:
        command = [*program, "--exclude-checks=positive_data_acceptance", f"{process.url}/openapi.json"]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stdout


def test_the_page_about_the_api_lists_the_same_routes() -> None:
    page = (Path(__file__).parents[2] / "docs" / "api.md").read_text(encoding="utf-8")
    told = re.findall(r"^\| `(GET|POST) (\S+)` \| (.+) \|$", page, re.MULTILINE)
    assert [(method.lower(), path, words) for method, path, words in told] == [(one.method, one.path, one.summary) for one in OPERATIONS]
