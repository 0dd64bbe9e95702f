"""On what device a model runs, with what kernels, and in what type."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec

import torch

from mqlab.config import Dtype, EngineConfig, check
from mqlab.errors import ConfigError


@dataclass(frozen=True)
class Choice:
    """Where a config's model runs.

    Attributes:
        device: ``cuda`` or ``cpu``.
        backend: a key of BACKENDS, or ``numba``: the CPU's own runner.
        dtype: of weights and KV cache.
    """

    device: str
    backend: str
    dtype: torch.dtype

    @property
    def on_accel(self) -> bool:
        """Whether it is this package's runner."""
        return self.backend != "numba"


def choose(config: EngineConfig) -> Choice:
    """Settle ``auto``.

    Raises:
        ConfigError: what was asked for together does not go together, or is not here.
    """
    device = _device(config)
    backend = _usual_backend(device) if config.attention_backend == "auto" else config.attention_backend
    _check_backend(config, device, backend)
    choice = Choice(device, backend, choose_dtype(config.dtype, device))
    _check_dtype(config, choice)
    return choice


def choose_dtype(asked: Dtype, device: str = "cpu") -> torch.dtype:
    """The run's dtype. On a CPU auto is float32 even where bfloat16 is faster: an answer must not depend on whose machine gave it."""
    if asked != "auto":
        return getattr(torch, asked)
    if device == "cpu":
        return torch.float32
    return torch.bfloat16 if _is_ampere_or_later() else torch.float16


def _usual_backend(device: str) -> str:
    if device == "cpu":
        return "numba"
    return "triton" if _is_ampere_or_later() else "sdpa"


def _is_ampere_or_later() -> bool:
    """From compute capability 8.0 on there is bfloat16, and the asynchronous copies that the kernels' configs are chosen for."""
    return torch.cuda.get_device_capability() >= (8, 0)


def _device(config: EngineConfig) -> str:
    there = torch.cuda.is_available()
    if config.device == "auto":
        # numba's kernels are asked for by who wants the CPU.
        return "cuda" if there and config.attention_backend != "numba" else "cpu"
    why = f"is not here: torch {torch.__version__} sees no GPU; install a CUDA build of torch and the driver, or pass --device cpu"
    check(there or config.device == "cpu", config, "device", why)
    return config.device


def _check_backend(config: EngineConfig, device: str, backend: str) -> None:
    check(device == "cpu" or backend != "numba", config, "attention_backend", "runs on a CPU; pass --device cpu, or triton, sdpa or torch")
    if backend == "triton":
        if find_spec("triton") is None:
            raise ConfigError("--attention-backend=triton needs triton, which is not installed; pip install 'mqlab[gpu]', or pass sdpa")
        check(
            device == "cuda" or _interpreted(),
            config,
            "attention_backend",
            "needs a GPU; on a CPU pass torch or sdpa, or set TRITON_INTERPRET=1 for Triton's interpreter, which is slow",
        )


def _interpreted() -> bool:
    from triton import knobs

    return knobs.runtime.interpret


def _check_dtype(config: EngineConfig, choice: Choice) -> None:
    half = choice.dtype == torch.float16 and not choice.on_accel
    check(
        not half,
        config,
        "dtype",
        "needs a GPU or --attention-backend torch: the CPU's kernels have float32 and bfloat16; pass one of these",
    )
    check(
        config.quantization == "none" or choice.on_accel,
        config,
        "quantization",
        "needs a GPU or --attention-backend torch; leave it out, or pass a quantised .gguf file as the model",
    )
