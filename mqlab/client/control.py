"""Control calls by their own names and types; every client has them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import msgspec

from mqlab.client.contract import Freed
from mqlab.types import EngineStats, ModelInfo


class Control(ABC):
    """See EngineClient for what each does."""

    @abstractmethod
    async def call(self, method: str, *args: Any, timeout: float | None = None) -> Any:
        """See EngineClient.call."""

    async def stats(self) -> EngineStats:
        """See EngineClient.stats."""
        return msgspec.convert(await self.call("stats"), EngineStats)

    async def reset_prefix_cache(self) -> None:
        """See EngineClient.reset_prefix_cache."""
        await self.call("reset_prefix_cache")

    async def load(self, model: str, **options: Any) -> ModelInfo:
        """See EngineClient.load."""
        return msgspec.convert(await self.call("load", model, options), ModelInfo)

    async def unload(self) -> Freed:
        """See EngineClient.unload."""
        return msgspec.convert(await self.call("unload"), Freed)

    async def sleep(self, level: int = 1) -> Freed:
        """See EngineClient.sleep."""
        return msgspec.convert(await self.call("sleep", level), Freed)

    async def wake_up(self) -> ModelInfo:
        """See EngineClient.wake_up."""
        return msgspec.convert(await self.call("wake_up"), ModelInfo)

    async def is_sleeping(self) -> bool:
        """See EngineClient.is_sleeping."""
        return bool(await self.call("is_sleeping"))
