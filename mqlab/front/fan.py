"""The child streams of one request, read as one stream of deltas."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

from mqlab.client.contract import EngineClient
from mqlab.front.merge import Merged
from mqlab.types import Delta, Request


class Only:
    """A single child: the client's own stream, with nothing in between."""

    def __init__(self, client: EngineClient, request: Request) -> None:
        self._stream = client.generate(request)

    def __aiter__(self) -> AsyncIterator[Delta]:
        return self._stream

    def end(self, request_id: str) -> None:
        """Nothing: with its only child ended, the reader closes the whole."""

    async def aclose(self) -> None:
        """Close the stream; a request that still runs is aborted."""
        await self._stream.aclose()


class Group:
    """Several children, interleaved as they arrive. A slow reader costs bounded memory: the client merges what arrives meanwhile."""

    def __init__(self, client: EngineClient, requests: Sequence[Request]) -> None:
        self._merged = Merged({request.id: client.generate(request) for request in requests})

    def __aiter__(self) -> AsyncIterator[Delta]:
        return self

    async def __anext__(self) -> Delta:
        return (await anext(self._merged))[1]

    def end(self, request_id: str) -> None:
        """Close one child early; a delta of it may still be under way."""
        self._merged.end(request_id)

    async def aclose(self) -> None:
        """Close all children; what still runs is aborted."""
        await self._merged.aclose()


def fan_out(client: EngineClient, requests: Sequence[Request]) -> Only | Group:
    """Start all children; one alone costs no task."""
    return Only(client, requests[0]) if len(requests) == 1 else Group(client, requests)
