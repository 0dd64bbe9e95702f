"""A client that was closed, and is collected at some later moment, takes nothing from those that came after it."""

from __future__ import annotations

import asyncio
import gc
from dataclasses import replace

from mqlab.contract.cases import rig_of
from mqlab.contract.rig import FAST, assert_serves, the_engine, without_collector


async def test_a_closed_client_that_is_collected_leaves_the_next_ones_pipes_alone() -> None:
    """Descriptors have their old numbers again; letting go of them once more would leave the new client deaf to its engine."""
    restore = without_collector()
    try:
        rig = rig_of("mq")
        old = rig.client()
        await old.start()
        await old.close()
        new = rig.client(timing=replace(FAST, start_timeout=10), slow_build=0.3)
        starting = asyncio.create_task(new.start())
        await the_engine()
        del old
        gc.collect()
        await starting
        async with asyncio.timeout(10):
            await assert_serves(new)
            await new.close()
    finally:
        restore()
