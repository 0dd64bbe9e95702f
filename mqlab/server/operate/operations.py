"""The table of all routes: what each takes and answers, as the OpenAPI document tells it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from mqlab.client.contract import Freed
from mqlab.server.openai.answers import ChatAnswer, ChatChunk, CompletionAnswer, CompletionChunk
from mqlab.server.openai.embeddings import EmbeddingAnswer, EmbeddingBody
from mqlab.server.openai.models import ModelCard, ModelList
from mqlab.server.openai.protocol import ChatBody, CompletionBody
from mqlab.server.openai.tokens import DetokenizeAnswer, DetokenizeBody, TokenizeAnswer, TokenizeBody
from mqlab.server.operate.control import LoadBody, Nothing, ProfileAnswer, ProfileBody, ResetAnswer, SleepingAnswer
from mqlab.server.operate.watch import HealthAnswer, LoadAnswer, ReadyAnswer, VersionAnswer

Struct = type[msgspec.Struct]

_GENERATING = (400, 401, 404, 413, 429, 500, 503)
_ASKING = (400, 401, 404, 413, 500, 503)
_STEERING = (400, 401, 403, 413, 500, 503)
_WATCHING = (401,)


@dataclass(frozen=True, kw_only=True)
class Operation:
    """One method of one path.

    Attributes:
        body: the struct of its body, None where it takes none.
        body_required: whether the body may not be left out.
        answer: the struct of its answer with status 200; None for text.
        unwell: that of its answer with status 503, where it is no error.
        chunk: the struct of an event, where it streams.
        errors: statuses that come with an error.
        parameters: of path and query, as OpenAPI has them.
        control: served with --enable-control only.
    """

    method: str
    path: str
    summary: str
    body: Struct | None = None
    body_required: bool = True
    answer: Struct | None = None
    unwell: Struct | None = None
    chunk: Struct | None = None
    errors: Sequence[int] = _WATCHING
    parameters: Sequence[Mapping[str, Any]] = field(default=())
    control: bool = False

    @property
    def structs(self) -> list[Struct]:
        """All that it reads and writes."""
        return [one for one in (self.body, self.answer, self.unwell, self.chunk) if one is not None]


def _post(path: str, summary: str, body: Struct | None, answer: Struct | None, **more: Any) -> Operation:
    return Operation(method="post", path=path, summary=summary, body=body, answer=answer, **{"errors": _ASKING, **more})


def _get(path: str, summary: str, answer: Struct | None, **more: Any) -> Operation:
    return Operation(method="get", path=path, summary=summary, answer=answer, **more)


def _control(path: str, summary: str, body: Struct | None, answer: Struct | None, **more: Any) -> Operation:
    return _post(path, summary, body, answer, control=True, **{"errors": _STEERING, "body_required": False, **more})


_MODEL = {"name": "model", "in": "path", "required": True, "schema": {"type": "string"}, "description": "The model's name."}
_LEVEL = {
    "name": "level",
    "in": "query",
    "schema": {"enum": ["1", "2"], "default": "1"},
    "description": "1 frees the KV memory, 2 the weights as well.",
}

_TOKENIZE = "Text or a conversation to token ids"

OPERATIONS = (
    _post("/v1/chat/completions", "Answer a conversation", ChatBody, ChatAnswer, chunk=ChatChunk, errors=_GENERATING),
    _post("/v1/completions", "Go on with a text", CompletionBody, CompletionAnswer, chunk=CompletionChunk, errors=_GENERATING),
    _post("/v1/embeddings", "Texts as vectors", EmbeddingBody, EmbeddingAnswer, errors=_GENERATING),
    _get("/v1/models", "The model that is served", ModelList),
    _get("/v1/models/{model}", "A model by name", ModelCard, parameters=(_MODEL,), errors=(401, 404, 503)),
    _post("/tokenize", _TOKENIZE, TokenizeBody, TokenizeAnswer),
    _post("/detokenize", "Token ids to text", DetokenizeBody, DetokenizeAnswer),
    _get("/health", "Whether the server lives; load does not matter", HealthAnswer, unwell=HealthAnswer),
    _get("/ready", "Whether a request that comes now is taken", ReadyAnswer, unwell=ReadyAnswer),
    _get("/ping", "The same as /health", HealthAnswer, unwell=HealthAnswer),
    _post("/ping", "The same as /health", None, HealthAnswer, unwell=HealthAnswer, errors=_WATCHING),
    _get("/load", "How busy the server is", LoadAnswer),
    _get("/version", "The server's version", VersionAnswer),
    _get("/metrics", "Counters and gauges in Prometheus' text format", None),
    _control("/start_profile", "Begin a profile of the engine", ProfileBody, ProfileAnswer),
    _control("/stop_profile", "End it, and write its file", Nothing, ProfileAnswer),
    _control("/reset_prefix_cache", "Forget all cached prompts", Nothing, ResetAnswer),
    _control("/sleep", "Free the model's memory until it is woken", Nothing, Freed, parameters=(_LEVEL,)),
    _control("/wake_up", "Serve again after sleep", Nothing, ModelCard),
    _get("/is_sleeping", "Whether the model sleeps", SleepingAnswer, errors=_STEERING, control=True),
    _control("/v1/model/load", "Serve another model", LoadBody, ModelCard, body_required=True),
    _control("/v1/model/unload", "Free the model; the engine's process stays", Nothing, Freed),
)
"""All that is served, but for this document itself."""
