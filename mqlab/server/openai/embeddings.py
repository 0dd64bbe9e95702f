"""/v1/embeddings: texts or token ids as vectors, several at once."""

from __future__ import annotations

import asyncio
import base64
import secrets
import struct
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal

import msgspec
from starlette.requests import Request
from starlette.routing import Route

from mqlab.errors import InvalidRequest, MqlabError
from mqlab.front.prompts import Prompt
from mqlab.params import PoolingKind
from mqlab.server.errors import ApiError, as_api_error, bad_request
from mqlab.server.metrics.metrics import ServerMetrics
from mqlab.server.openai.fields import Int, one_or_several
from mqlab.server.openai.jsonroute import JsonRoute
from mqlab.server.state import ServerState
from mqlab.types import Embedding, Tokens

MAX_INPUTS = 2048
"""Inputs of one request, at most. Source: OpenAI's API reference."""

_AT_ONCE = 64
"""Inputs of one request that the engine is given at once, at most."""

_NOT_OFFERED: dict[str, Any] = {
    "dimensions": None,
    "messages": None,
    "truncate_prompt_tokens": None,
    "add_special_tokens": True,
    "embed_dtype": "float32",
    "endianness": "little",
}


class EmbeddingBody(msgspec.Struct, frozen=True, kw_only=True):
    """POST /v1/embeddings.

    Attributes:
        input: text, several texts, token ids, or several lists of them; at most 2048.
        encoding_format: numbers, or the base64 of little-endian 32-bit floats.
        pooling: the mean of all tokens' final hidden states, the last token's, or the first one's; of mqlab.
        normalize: to length 1.
        priority: under the engine's priority policy the lowest goes first.
        cache_salt: cached prompts are shared among requests of one salt only.
    """

    model: str | None = None
    input: str | list[str | Int | list[Int]]
    encoding_format: Literal["float", "base64"] = "float"
    pooling: PoolingKind = "mean"
    normalize: bool = True
    priority: Int = 0
    cache_salt: str = ""


class Vector(msgspec.Struct, frozen=True, kw_only=True):
    """One embedding, as numbers or as base64."""

    object: Literal["embedding"] = "embedding"
    index: int
    embedding: list[float] | str


class EmbeddingUsage(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens of all inputs."""

    prompt_tokens: int
    total_tokens: int


class EmbeddingAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """What POST /v1/embeddings answers: a vector for each input, in their order."""

    id: str
    object: Literal["list"] = "list"
    data: list[Vector]
    model: str
    usage: EmbeddingUsage


def routes(state: ServerState) -> list[Route]:
    """/v1/embeddings."""

    async def embeddings(body: EmbeddingBody, request: Request) -> EmbeddingAnswer:
        del request
        start = time.monotonic()
        with _refusals_counted(state.metrics), state.call():
            state.check_model(body.model)
            name = f"embd-{secrets.token_hex(12)}"
            found = await _Work(state, body, name).all(_inputs(body.input))
            _count(state.metrics, found, time.monotonic() - start)
            data = [Vector(index=index, embedding=_coded(one, body.encoding_format)) for index, one in enumerate(found)]
            tokens = sum(one.prompt_tokens for one in found)
            return EmbeddingAnswer(id=name, data=data, model=state.model, usage=EmbeddingUsage(prompt_tokens=tokens, total_tokens=tokens))

    return [Route("/v1/embeddings", JsonRoute(EmbeddingBody, embeddings, _NOT_OFFERED), methods=["POST"])]


class _Work:
    """The inputs of one request, a few of them at once. The first refusal ends all."""

    def __init__(self, state: ServerState, body: EmbeddingBody, name: str) -> None:
        self._state = state
        self._body = body
        self._name = name
        self._turn = asyncio.Lock()
        self._slots = asyncio.Semaphore(min(_AT_ONCE, state.most or _AT_ONCE))

    async def all(self, inputs: Sequence[Prompt]) -> list[Embedding]:
        """The vectors in the order of the inputs."""
        if len(inputs) == 1:
            return [await self._one(0, "", inputs[0])]
        with _first_of_group():
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(self._one_of(number, prompt)) for number, prompt in enumerate(inputs)]
        return [task.result() for task in tasks]

    async def _one_of(self, number: int, prompt: Prompt) -> Embedding:
        async with self._slots:
            return await self._one(number, f"input[{number}]: ", prompt)

    async def _one(self, number: int, place: str, prompt: Prompt) -> Embedding:
        body, name = self._body, f"{self._name}-{number}"
        try:
            return await self._state.front.embed(
                await self._tokens(prompt), body.pooling, body.normalize, request_id=name, priority=body.priority, salt=body.cache_salt
            )
        except InvalidRequest as error:
            raise bad_request(f"{place}{error}", "input" if "prompt" in str(error) else None) from error

    async def _tokens(self, prompt: Prompt) -> Tokens:
        """One after the other, and others have a turn between two: to tokenise thousands takes seconds."""
        async with self._turn:
            tokens = await self._state.front.tokenise(prompt, room=0)
            await asyncio.sleep(0)
        return tokens


@contextmanager
def _first_of_group() -> Iterator[None]:
    """What failed first, alone: the others were cancelled because of it."""
    try:
        yield
    except BaseExceptionGroup as group:
        raise group.exceptions[0] from None


@contextmanager
def _refusals_counted(metrics: ServerMetrics) -> Iterator[None]:
    try:
        yield
    except (ApiError, MqlabError) as error:
        metrics.rejections[as_api_error(error).code or ""] += 1
        raise


def _count(metrics: ServerMetrics, found: Sequence[Embedding], seconds: float) -> None:
    metrics.finished["stop"] += len(found)
    for one in found:
        metrics.observe("request_prompt_tokens", one.prompt_tokens)
        metrics.observe("e2e_request_latency_seconds", seconds)


def _inputs(given: str | list[Any]) -> list[Prompt]:
    inputs = one_or_several(given, "input")
    if len(inputs) > MAX_INPUTS:
        raise bad_request(f"input has {len(inputs)} items, and at most {MAX_INPUTS} may be sent at once; send them in parts", "input")
    return inputs


def _coded(found: Embedding, encoding: str) -> list[float] | str:
    values = found.values
    return list(values) if encoding == "float" else base64.b64encode(struct.pack(f"<{len(values)}f", *values)).decode()
