"""Timing facts of a device, and how long a step takes on it.

A file of profiles/devices describes one; see ``Device`` for its fields:

    title = "NVIDIA H100 SXM5 80 GB"
    bandwidth_tb_s = 3.35
    tflops = 989.5
    memory_gib = 80
    source = "where these are from"

    [fit]                # optional: how much of that is reached, and what a step costs beside; see ``Fit``
    bandwidth_share = 0.76
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from math import isfinite
from pathlib import Path
from typing import Any, Literal

import msgspec

from mqlab.errors import ModelError
from mqlab.models.devices import device_file, read_toml

DeviceDtype = Literal["bfloat16", "float16", "float32"]


@dataclass(frozen=True, kw_only=True)
class Fit:
    """How a device's peaks become times. The defaults fit all rows of profiles/devices/measured.toml, three GPUs and 1 to 4,096 tokens a
    step, within 10 % (CUDA-event timings of vidur's profiles).

    Attributes:
        bandwidth_share, flops_share: of the peaks, what is reached.
        exponent: p of the smooth maximum (a^p + b^p)^(1/p) of memory time a and compute time b; a large one comes close to max(a, b).
        step_ms: of every step.
        sequence_us: of every sequence in it.
        token_us: of every token that it runs.
        context_ns: of every token of context that one of its tokens looks at.
        cached_ns: of every token of context, once however many look at it: what reading its keys and values costs beyond their bytes.
        crowd_ns: of every token that it runs, times their number: what it costs that more of them need more of a processor's caches.
    """

    bandwidth_share: float = 0.76
    flops_share: float = 0.70
    exponent: float = 1.5
    step_ms: float = 0.5
    sequence_us: float = 0.0
    token_us: float = 0.0
    context_ns: float = 0.0
    cached_ns: float = 0.0
    crowd_ns: float = 0.0

    def __post_init__(self) -> None:
        for name in ("bandwidth_share", "flops_share"):
            _check(getattr(self, name) > 0, self, name, "must be above 0")
        _check(self.exponent >= 1, self, "exponent", "must be at least 1")
        for name in ("step_ms", "sequence_us", "token_us", "context_ns", "cached_ns", "crowd_ns"):
            _check(getattr(self, name) >= 0, self, name, "must be at least 0")


@dataclass(frozen=True, kw_only=True)
class Device:
    """What a simulated step is timed by.

    Attributes:
        name: what it is called by: its file's.
        title: what people call it.
        bandwidth_tb_s: of its memory, 1e12 bytes a second.
        tflops: dense floating-point operations in ``dtype``, 1e12 a second.
        memory_gib: its memory.
        source: where these are from.
        dtype: that its peak holds for, and that a model's weights have unless told otherwise.
        aliases: other names.
        fit: how much of the peaks is reached.
    """

    name: str
    title: str = ""
    bandwidth_tb_s: float
    tflops: float
    memory_gib: float
    source: str = ""
    dtype: DeviceDtype = "bfloat16"
    aliases: tuple[str, ...] = ()
    fit: Fit = field(default_factory=Fit)

    def __post_init__(self) -> None:
        for name in ("bandwidth_tb_s", "tflops", "memory_gib"):
            _check(getattr(self, name) > 0, self, name, "must be above 0")

    @staticmethod
    def load(name: str | Path) -> Device:
        """A device by its name, an alias or the path of its file.

        Raises:
            ModelError: there is none (the message lists those that there are), or its file is not as it must be.
        """
        path = device_file(str(name))
        return Device.of({**read_toml(path), "name": path.stem}, str(path))

    @staticmethod
    def of(facts: Mapping[str, Any], where: str = "device") -> Device:
        """From the content of a file; numbers may be whole.

        Raises:
            ModelError: a field that is unknown, missing, of the wrong kind or beyond its limits; it is named, with ``where``.
        """
        own, of_fit = {one.name for one in fields(Device)}, {one.name for one in fields(Fit)}
        fit = facts.get("fit")
        unknown = sorted(facts.keys() - own) or sorted(fit.keys() - of_fit if isinstance(fit, dict) else ())
        if unknown:
            raise ModelError(f"{where}: {', '.join(unknown)} is no field of a device; it has {', '.join(sorted(own | of_fit))}")
        try:
            return msgspec.convert(dict(facts), Device)
        except (msgspec.ValidationError, ModelError) as error:
            raise ModelError(f"{where}: {error}; correct it, or write it again with `mqlab calibrate`") from error

    def as_toml(self) -> str:
        """Its file: what ``load`` reads back as an equal device."""
        own = {name: value for name, value in asdict(self).items() if name not in ("name", "fit") and value not in ("", ())}
        lines = [f"{name} = {_toml(value)}" for name, value in own.items()]
        return "\n".join([*lines, "", "[fit]", *[f"{name} = {_toml(value)}" for name, value in asdict(self.fit).items()]]) + "\n"

    @property
    def bandwidth(self) -> float:
        """Bytes a second that are reached."""
        return self.fit.bandwidth_share * self.bandwidth_tb_s * 1e12

    @property
    def flops(self) -> float:
        """Floating-point operations a second that are reached."""
        return self.fit.flops_share * self.tflops * 1e12

    def busy_seconds(self, moved: float, flops: float) -> float:
        """How long it takes to move so many bytes and do so many operations, which overlap in part."""
        p = self.fit.exponent
        return ((moved / self.bandwidth) ** p + (flops / self.flops) ** p) ** (1 / p)


def _check(ok: bool, owner: object, name: str, limit: str) -> None:
    value = getattr(owner, name)
    if not (ok and isfinite(value)):
        raise ModelError(f"{name}={value!r} {limit}")


def _toml(value: object) -> str:
    if isinstance(value, str):
        return '"' + value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", " ") + '"'
    if isinstance(value, tuple):
        return "[" + ", ".join(map(_toml, value)) + "]"
    return repr(value)
