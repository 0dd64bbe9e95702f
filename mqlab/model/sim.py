"""The runner that computes nothing: it says English, and takes the time that a GPU would take.

    sim:llama-3.1-8b@h100        a shape that ships with the package, on a device of profiles/devices
    sim:./my-model@my-gpu.toml   a folder with config.json, on a device of one's own

All around it is real: scheduler, KV blocks (as many as the device's memory holds beside the weights), sockets, text. No torch.

Device time is a timeline, as a CUDA stream is: a step ends its own time after the one before it ended, or after its launch, whichever is
later. To wait for it is to sleep, so the processor is free as it is beside a GPU.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, replace
from math import floor
from pathlib import Path

from mqlab.clock import MonotonicClock, SleepingClock
from mqlab.config import EngineConfig, Settings
from mqlab.errors import ConfigError
from mqlab.model.architecture import Architecture, read_architecture
from mqlab.model.cost import ModelCost, step_seconds
from mqlab.model.device import Device
from mqlab.model.info import model_info
from mqlab.model.sim_text import sim_text
from mqlab.model.sim_tokens import SimTokens
from mqlab.model.sim_work import rounds_of
from mqlab.models.resolve import load_config, resolve
from mqlab.models.simulated import Simulated
from mqlab.plan import Plan, SampledTokens
from mqlab.types import ModelInfo

RESERVE_GIB = 0.5
"""For the driver's context and what else a process keeps on a device."""


@dataclass(frozen=True)
class SimFlight:
    """A step that the device is done with at ``end_ns``."""

    sampled: SampledTokens
    end_ns: int
    clock: SleepingClock

    def wait(self) -> SampledTokens:
        """What was sampled, when it is due."""
        overslept = self.clock.sleep_until(self.end_ns)
        return replace(self.sampled, oversleep_ns=overslept) if overslept else self.sampled


class SimRunner:
    """Obeys Runner on a simulated device.

    Args:
        info: what clients must know.
        device: times each step.
        cost: of the model.
        text: ids that it speaks.
        clock: tells the time, and is slept by.
    """

    def __init__(self, info: ModelInfo, device: Device, cost: ModelCost, text: array[int], clock: SleepingClock) -> None:
        self.info = info
        self._device = device
        self._cost = cost
        self._text = text
        self._clock = clock
        self._end_ns = 0
        self._tokens: SimTokens | None = None
        self.resume()

    def launch(self, plan: Plan) -> SimFlight:
        """Start one step: what it says is known at once, and handed out when the device's time for it is over.

        Raises:
            RuntimeError: resting, or closed.
        """
        if self._tokens is None:
            raise RuntimeError("the runner has no KV memory: it rests, or is closed")
        sampled = self._tokens.run(plan)
        seconds = sum([step_seconds(self._device, self._cost, work) for work in rounds_of(plan, self._cost)])
        step_ns = round(seconds * 1e9)
        self._end_ns = max(self._end_ns, self._clock.now_ns()) + step_ns
        return SimFlight(replace(sampled, device_ns=step_ns), self._end_ns, self._clock)

    def check(self) -> None:
        """Nothing is needed but this process."""

    def rest(self) -> None:
        """Forget what the KV memory held."""
        self._tokens = None

    def resume(self) -> None:
        """Have memory again."""
        info = self.info
        self._tokens = SimTokens(self._text, info.vocab_size, info.num_blocks, info.block_size, info.eos_token_ids, info.hidden_size)

    def close(self) -> None:
        """Free everything."""
        self._tokens = None


@dataclass(frozen=True)
class Foreseen:
    """What a simulated model will be."""

    info: ModelInfo
    device: Device
    cost: ModelCost


def build(config: EngineConfig, clock: SleepingClock | None = None) -> SimRunner:
    """A runner of ``sim:<model>@<device>``.

    Args:
        clock: the machine's by default.

    Raises:
        ConfigError: a limit of the config does not fit model and device.
        ModelError: one of the two cannot be found, or the model is none that the decoder knows.
    """
    found = foresee(config)
    info = found.info
    eos = info.eos_token_ids[0] if info.eos_token_ids else None
    text = sim_text(Path(info.path), Settings.read().cache_dir, eos, info.vocab_size)
    return SimRunner(info, found.device, found.cost, text, clock or MonotonicClock())


def foresee(config: EngineConfig) -> Foreseen:
    """What a simulated model will be; fetched where it must be.

    Raises:
        ConfigError, ModelError: as ``build``.
    """
    device = Device.load(Simulated.parse(config.model).device)
    folder = resolve(config.model, Settings.read().cache_dir)
    arch = read_architecture(load_config(folder))
    dtype = device.dtype if config.dtype == "auto" else config.dtype
    cost = ModelCost.of_architecture(arch, dtype)
    blocks = count_blocks(config, device, arch, cost)
    return Foreseen(model_info(config, folder, arch, dtype, blocks), device, cost)


def count_blocks(config: EngineConfig, device: Device, arch: Architecture, cost: ModelCost) -> int:
    """KV blocks: what the config names, or what the device's memory holds beside weights and activations.

    Raises:
        ConfigError: it does not hold one.
    """
    if config.num_kv_blocks is not None:
        return config.num_kv_blocks
    share = config.memory_share
    needed = cost.weight_bytes + activation_bytes(config, arch)
    left = device.memory_gib * share * 2**30 - needed
    count = floor(left / (cost.kv_bytes * config.block_size))
    if count < 1:
        raise ConfigError(
            f"{config.model} needs {needed / 2**30:.1f} GiB for weights and activations, and {device.name} gives {share:g} of its "
            f"{device.memory_gib:g} GiB: no KV block fits; take a larger device, a smaller model, or raise --gpu-memory-utilization"
        )
    return count


def activation_bytes(config: EngineConfig, arch: Architecture) -> int:
    """What a step needs beside weights and KV: its widest layer, float32 logits and a copy of them, and RESERVE_GIB."""
    layer = config.max_num_batched_tokens * (4 * arch.hidden + 2 * arch.intermediate) * 2
    logits = config.max_num_seqs * arch.vocab * 4 * 2
    return layer + logits + int(RESERVE_GIB * 2**30)
