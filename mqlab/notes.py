"""What an engine's settings ask for and will not get, a line each: no reason to refuse, and not to be kept from who asked."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path

from mqlab.config import EngineConfig

logger = logging.getLogger("mqlab.notes")

_OF_KERNELS = frozenset({"device", "attention_backend", "enforce_eager", "cuda_graph_sizes", "torch_compile", "quantization"})
"""Settings of what computes a model; where nothing does, they are not heeded."""


def notes_of(config: EngineConfig) -> tuple[str, ...]:
    """The lines, to be told to the user once."""
    on_cpu = config.device == "cpu" or (config.device == "auto" and _has_no_gpu())
    if config.model.startswith("sim:"):
        return (*_on_simulated_memory(config), *_on_no_kernels(config, "for a simulated device"))
    if config.model.partition(":")[0] == "echo":
        return (*_on_no_memory(config), *_on_no_kernels(config, "without a model"))
    return (*_on_memory(config, on_cpu), *_on_graphs(config, on_cpu))


def log_notes(config: EngineConfig) -> None:
    """Warn of them, where no command line shows them."""
    for note in notes_of(config):
        logger.warning(note)


def _on_no_kernels(config: EngineConfig, why: str) -> list[str]:
    given = [one.name for one in fields(config) if one.name in _OF_KERNELS and getattr(config, one.name) != one.default]
    return [f"--{name.replace('_', '-')} does nothing {why}: no kernels run there" for name in given]


def _on_no_memory(config: EngineConfig) -> list[str]:
    given = {"--kv-cache-gb": config.kv_cache_gb, "--gpu-memory-utilization": config.gpu_memory_utilization}
    return [f"{one} does nothing without a model: --num-kv-blocks does" for one in _told(given)]


def _on_simulated_memory(config: EngineConfig) -> list[str]:
    blocks = _told({"--num-kv-blocks": config.num_kv_blocks})
    share = _told({"--gpu-memory-utilization": config.gpu_memory_utilization})
    return [
        *[f"{one} does nothing for a simulated device: --num-kv-blocks does" for one in _told({"--kv-cache-gb": config.kv_cache_gb})],
        *[f"{one} sizes nothing: {blocks[0]} does" for one in share if blocks],
    ]


def _on_memory(config: EngineConfig, on_cpu: bool) -> list[str]:
    share = {"--gpu-memory-utilization": config.gpu_memory_utilization}
    given = _told({"--num-kv-blocks": config.num_kv_blocks, "--kv-cache-gb": config.kv_cache_gb, **share})
    if on_cpu and given and config.num_kv_blocks is None and config.kv_cache_gb is None:
        return [f"{given[0]} sizes nothing on a CPU: --kv-cache-gb, 1 by default, does"]
    return [f"{beside} sizes nothing: {given[0]} does" for beside in given[1:]]


def _told(values: Mapping[str, float | None]) -> list[str]:
    return [f"{flag} {value:.12g}" for flag, value in values.items() if value is not None]


def _on_graphs(config: EngineConfig, on_cpu: bool) -> list[str]:
    asked = {"--cuda-graph-sizes": bool(config.cuda_graph_sizes), "--torch-compile": config.torch_compile}
    given = [flag for flag, one in asked.items() if one]
    if on_cpu and (config.attention_backend in ("auto", "numba") or not config.torch_compile):
        return [f"{flag} does nothing on a CPU, where steps run kernel by kernel" for flag in given]
    if config.enforce_eager:
        return [f"{flag} does nothing with --enforce-eager" for flag in given]
    return _on_graph_sizes(config.cuda_graph_sizes, config.max_num_seqs) if config.cuda_graph_sizes else []


def _on_graph_sizes(sizes: tuple[int, ...], most: int) -> list[str]:
    beyond = " ".join(str(size) for size in sizes if size > most)
    largest = max((size for size in sizes if size <= most), default=0)
    without = f"{largest + 1} to {most}" if largest + 1 < most else str(most)
    return [
        *[f"--cuda-graph-sizes {beyond} is left out: a step has at most --max-num-seqs {most} sequences"] * bool(beyond),
        *[f"decode steps of {without} sequences run without a graph: --cuda-graph-sizes has none for them"] * (largest < most),
    ]


def _has_no_gpu() -> bool:
    """Whether the machine shows none, as far as one can see without torch, which takes seconds."""
    return not any(Path(one).exists() for one in ("/dev/nvidiactl", "/dev/dxg"))
