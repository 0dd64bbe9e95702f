"""The one contract between everything above tokens and an engine."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable
from typing import Any, Protocol

import msgspec

from mqlab.client.direct import Sink
from mqlab.types import Delta, EngineStats, Health, ModelInfo, Request, Shape


class Freed(msgspec.Struct, frozen=True):
    """What freeing a model gave back.

    Attributes:
        rss_before: bytes that the engine's process held in memory.
        rss_after: those that it holds.
    """

    rss_before: int
    rss_after: int

    def __repr__(self) -> str:
        before, after = self.rss_before / 2**20, self.rss_after / 2**20
        return f"<Freed {before - after:.0f} MiB: the engine's process holds {after:.0f} MiB, {before:.0f} MiB before>"


class Pushing(Protocol):
    """One request on its way to a sink. On the event loop's thread."""

    async def start(self) -> None:
        """Return when the engine was handed the request; the sink may have deltas before that.

        Raises:
            what ``EngineClient.generate`` raises before its first delta. The sink may have been told the same.
        """
        ...

    def leave(self) -> None:
        """Take no more; a request that still runs is aborted. Idempotent. For whoever wants to stop early."""
        ...


class EngineClient(Protocol):
    """An engine as its users see it: async, token-level. Entering starts it, leaving closes it.

    Attributes:
        shape: the layout, as a picture.
        limit: streams that may be open at once; None for no limit.
        max_pending: requests that may wait for the engine; None for no limit.
    """

    limit: int | None
    max_pending: int | None

    @property
    def pending(self) -> int:
        """Requests that wait for the engine, or were sent to it and will find no place in its batch."""
        ...

    @property
    def shape(self) -> Shape:
        """The layout, as a picture."""
        ...

    @property
    def info(self) -> ModelInfo:
        """What the engine said of itself last: when it became ready, or when its model changed."""
        ...

    async def start(self) -> None:
        """Return when requests can be served.

        Raises:
            ConfigError, ModelError: the engine refuses what it was asked for. EngineStartError: it never became ready; carries the cause.
        """
        ...

    def generate(self, request: Request) -> AsyncGenerator[Delta, None]:
        """Stream a request's new tokens; the last delta has ``finish``. Leaving early aborts the request.

        Raises:
            InvalidRequest: refused; duplicate id. RequestFailed: died while processed. ModelUnavailable: no model, or another one.
            Overloaded: too many are open. EngineDeadError, ClientClosedError.
        """
        ...

    def push(self, request: Request, sink: Sink) -> Pushing:
        """``generate`` without a reader that waits: once started, deltas are handed to ``sink.put`` on the loop's thread as they
        arrive, the errors that ``generate`` would raise to ``sink.fail``. All other rules are the same.
        """
        ...

    async def abort(self, ids: Iterable[str]) -> None:
        """End requests with finish "abort". Unknown and finished ids are ignored; silent when the engine is dead or closed."""
        ...

    async def call(self, method: str, *args: Any, timeout: float | None = None) -> Any:
        """Run a control call in the core.

        Raises:
            CallError: it failed, or is unknown. CallTimeout: no answer in ``timeout`` seconds. EngineDeadError, ClientClosedError.
        """
        ...

    async def stats(self) -> EngineStats:
        """The core's counters and gauges."""
        ...

    async def reset_prefix_cache(self) -> None:
        """Forget all cached prompts; what runs keeps its blocks."""
        ...

    async def load(self, model: str, **options: Any) -> ModelInfo:
        """Serve another model, in the engine that runs. Requests that are live end with ModelUnavailable, and so do new ones until then.

        Args:
            options: fields of EngineConfig that are to differ from what the engine was started with.

        Raises:
            CallError: it cannot be served; where that was seen beforehand the model that was loaded goes on, else none is loaded.
        """
        ...

    async def unload(self) -> Freed:
        """Free weights and KV memory; the engine's process stays. Requests end, and are refused, as under ``load``."""
        ...

    async def sleep(self, level: int = 1) -> Freed:
        """Free the KV memory, and from level 2 on the weights, until ``wake_up``. Requests end, and are refused, as under ``load``.

        Raises:
            CallError: no model is loaded, or no such level.
        """
        ...

    async def wake_up(self) -> ModelInfo:
        """Serve again after ``sleep``.

        Raises:
            CallError: no model is loaded, or the memory is there no more; it sleeps on.
        """
        ...

    async def is_sleeping(self) -> bool:
        """Whether the model sleeps."""
        ...

    async def check(self) -> Health:
        """What is known of the engine's health, without asking the engine."""
        ...

    async def close(self, *, drain: float = 0.0) -> None:
        """End it, in bounded time: open streams get ``drain`` seconds, then ClientClosedError. Idempotent."""
        ...
