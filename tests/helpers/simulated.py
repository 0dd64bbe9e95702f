"""Simulated engines for tests: a small model of numbers only, and devices whose steps take what a test says."""

from __future__ import annotations

from array import array
from pathlib import Path
from typing import Any

from mqlab.clock import VirtualClock
from mqlab.config import EngineConfig
from mqlab.engine.core import step
from mqlab.engine.engine_core import EngineCore
from mqlab.model.cost import ModelCost
from mqlab.model.device import Device, Fit
from mqlab.model.sim import SimRunner
from mqlab.types import ModelInfo, Step

VOCAB = 211
TEXT = array("i", [(7 * i * i + 3 * i) % VOCAB for i in range(1009)])
COST = ModelCost(layer_bytes=1, layer_flops=1, head_bytes=1, head_flops=1, weight_bytes=2, kv_bytes=1, attention_flops=1)


def device_of(step_ms: float = 10.0, **fit: float) -> Device:
    """One on which nothing takes time but what the fit adds."""
    return Device(name="test", bandwidth_tb_s=1e12, tflops=1e12, memory_gib=1, fit=Fit(step_ms=step_ms, **fit))


def write_device(folder: Path, step_ms: float) -> Path:
    """The same as a file."""
    path = folder / "test.toml"
    path.write_text(device_of(step_ms).as_toml(), encoding="utf-8")
    return path


def sim_runner(
    clock: VirtualClock,
    num_blocks: int = 512,
    block_size: int = 4,
    max_model_len: int = 256,
    on: Device | None = None,
    text: array[int] = TEXT,
) -> SimRunner:
    """A runner of the small model."""
    info = ModelInfo(
        name="sim",
        vocab_size=VOCAB,
        max_model_len=max_model_len,
        max_prompt_len=min(max_model_len, num_blocks * block_size) - 1,
        num_blocks=num_blocks,
        block_size=block_size,
        hidden_size=8,
    )
    return SimRunner(info, on or device_of(), COST, TEXT, clock)


def sim_core(clock: VirtualClock | None = None, *, num_blocks: int = 512, on: Device | None = None, **config: Any) -> EngineCore:
    """An engine with it, in virtual time."""
    clock = clock or VirtualClock()
    return EngineCore(sim_runner(clock, num_blocks, on=on), EngineConfig(**{"model": "sim", **config}), clock)


def gained(core: EngineCore) -> dict[str, list[int]]:
    """The tokens of each request, once all have ended."""
    tokens: dict[str, list[int]] = {}
    while core.has_work:
        for event in step(core):
            for delta in event.deltas if isinstance(event, Step) else ():
                assert delta.error is None, delta.error
                tokens.setdefault(delta.id, []).extend(delta.tokens)
    return tokens
