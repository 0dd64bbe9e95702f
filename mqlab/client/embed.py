"""A prompt as a vector, over any client."""

from __future__ import annotations

from array import array
from contextlib import aclosing

from mqlab.client.contract import EngineClient
from mqlab.errors import InvalidRequest, RequestFailed
from mqlab.types import Embedding, Request


async def embed(client: EngineClient, request: Request) -> Embedding:
    """The embedding of a request's prompt, as its ``pooling`` says. Cancelling aborts it.

    Source: vLLM's pooling models; here any causal model pools its last hidden states.

    Raises:
        InvalidRequest: refused; no ``pooling``; the engine gives no embeddings. RequestFailed: died while processed, or aborted.
        ModelUnavailable, EngineDeadError, ClientClosedError.
    """
    if request.pooling is None:
        raise InvalidRequest(f"request {request.id!r} has no pooling; set it to Pooling('mean'), 'last' or 'cls'")
    if not client.info.hidden_size:
        raise InvalidRequest(f"engine {client.info.name!r} gives no embeddings: it tells no hidden_size; serve a model that does")
    found: bytes | None = None
    async with aclosing(client.generate(request)) as deltas:
        async for delta in deltas:
            found = delta.embedding
    if found is None:
        raise RequestFailed(f"request {request.id!r} ended without an embedding: it was aborted")
    return Embedding(values=tuple(array("f", found)), prompt_tokens=len(request.prompt))
