"""/openapi.json: every route with its bodies and answers (OpenAPI 3.1), made from the structs that the routes read and write."""

from __future__ import annotations

from collections.abc import Sequence
from inspect import cleandoc
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from mqlab.config import ServerConfig
from mqlab.server.http.gate import OPEN
from mqlab.server.openai.answers import ErrorAnswer
from mqlab.server.operate.operations import OPERATIONS, Operation, Struct
from mqlab.server.state import VERSION, ServerState

_COMPONENT = "#/components/schemas/{name}"
_JSON = "application/json"
_WORDS = {
    400: "The request is wrong; `param` names the field, the message what to change.",
    401: "No key, or one that this server does not know.",
    403: "It comes from a web page that may not call this server.",
    404: "There is no such model here.",
    413: "The body is longer than this server takes.",
    429: "As many requests are open as one key may have; try again after `Retry-After` seconds.",
    500: "The request failed while it was processed.",
    503: "No request can be served just now, or none more; `code` says why, `Retry-After` when to try again.",
}


def routes(state: ServerState) -> list[Route]:
    """/openapi.json."""
    made: list[bytes] = []

    async def openapi(request: Request) -> Response:
        """Made when it is first asked for."""
        del request
        if not made:
            made.append(msgspec.json.encode(document(state.config)))
        return Response(made[0], media_type=_JSON)

    return [Route("/openapi.json", openapi)]


def document(config: ServerConfig) -> dict[str, Any]:
    """The document of a server with these settings: control routes and keys are in it where it has them."""
    served = [one for one in OPERATIONS if config.enable_control or not one.control]
    paths: dict[str, dict[str, Any]] = {}
    for one in served:
        paths.setdefault(one.path, {})[one.method] = _operation(one, bool(config.api_key))
    found: dict[str, Any] = {
        "openapi": "3.1.0",
        "info": {"title": "mqlab", "version": VERSION, "description": "OpenAI's API and vLLM's, over an engine of mqlab."},
        "paths": paths,
        "components": {"schemas": _schemas(served), "responses": {f"Error{status}": _error(status) for status in _WORDS}},
    }
    if config.api_key:
        found["components"]["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
        found["security"] = [{"key": []}]
    return found


def _operation(one: Operation, keys: bool) -> dict[str, Any]:
    found: dict[str, Any] = {
        "summary": one.summary,
        "operationId": f"{one.method}{one.path}".translate(str.maketrans("/{", "__", "}")),
        "responses": _responses(one, keys),
    }
    if one.parameters:
        found["parameters"] = list(one.parameters)
    if one.body is not None:
        found["requestBody"] = {"required": one.body_required, "content": {_JSON: {"schema": _reference(one.body)}}}
    if keys and one.path in OPEN:
        found["security"] = []
    return found


def _responses(one: Operation, keys: bool) -> dict[str, Any]:
    content = {"text/plain": {"schema": {"type": "string"}}} if one.answer is None else {_JSON: {"schema": _reference(one.answer)}}
    words = "The answer."
    if one.chunk is not None:
        words = f"The answer; with `stream`, server-sent events that each hold a {one.chunk.__name__}, and `data: [DONE]` at the end."
        content["text/event-stream"] = {"schema": _event(one.chunk)}
    found: dict[str, Any] = {"200": {"description": words, "content": content}}
    if one.unwell is not None:
        found["503"] = {"description": "It is not.", "content": {_JSON: {"schema": _reference(one.unwell)}}}
    asks_for_key = keys and one.path not in OPEN
    errors = [status for status in one.errors if asks_for_key or status != 401]
    return found | {str(status): {"$ref": f"#/components/responses/Error{status}"} for status in errors}


def _event(chunk: Struct) -> dict[str, Any]:
    piece = {"type": "string", "contentMediaType": _JSON, "contentSchema": _reference(chunk)}
    return {"type": "object", "properties": {"data": {"anyOf": [{"const": "[DONE]"}, piece]}}, "required": ["data"]}


def _error(status: int) -> dict[str, Any]:
    return {"description": _WORDS[status], "content": {_JSON: {"schema": _reference(ErrorAnswer)}}}


def _reference(struct: Struct) -> dict[str, Any]:
    return {"$ref": _COMPONENT.format(name=struct.__name__)}


def _schemas(served: Sequence[Operation]) -> dict[str, Any]:
    structs = dict.fromkeys([ErrorAnswer, *(struct for one in served for struct in one.structs)])
    _, found = msgspec.json.schema_components(structs, ref_template=_COMPONENT)
    for schema in found.values():
        schema["description"] = cleandoc(schema.get("description", ""))
    for name in {one.body.__name__ for one in served if one.body is not None}:
        _allow_null(found[name])
    return found


def _allow_null(body: dict[str, Any]) -> None:
    """In a body null is the same as absent."""
    for name, schema in body["properties"].items():
        kinds = schema.get("anyOf", [])
        if name in body.get("required", ()) or {"type": "null"} in kinds:
            continue
        default = {"default": schema.pop("default")} if "default" in schema else {}
        body["properties"][name] = {"anyOf": [*(kinds or [schema]), {"type": "null"}], **default}
