"""From measured steps to the parameters of ``step_seconds``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from mqlab.model.cost import ModelCost, Work, step_seconds
from mqlab.model.device import Device, Fit
from mqlab.models.devices import MEASURED, read_toml, shipped_devices

ROOFLINE = ("bandwidth_share", "flops_share", "exponent", "step_ms")
"""The parameters that describe a GPU; a CPU's engine has others beside."""

_ROUNDS = 100
_LEAST = 1e-6


@dataclass(frozen=True)
class Row:
    """One measurement: so much work of a model on a device took so long."""

    device: Device
    cost: ModelCost
    work: Work
    seconds: float

    def error(self, fit: Fit) -> float:
        """How far ``step_seconds`` is off with these parameters, as a share of what was measured; negative where it is too fast."""
        return step_seconds(replace(self.device, fit=fit), self.cost, self.work) / self.seconds - 1


def fit(rows: Sequence[Row], free: Sequence[str] = ROOFLINE, start: Fit | None = None) -> Fit:
    """The parameters of the least mean square of log(predicted / measured), by Levenberg and Marquardt's method.

    Args:
        rows: at least as many as there are free parameters.
        free: fields of Fit that may change.
        start: where the search begins, and what the others stay at.

    Raises:
        ValueError: too few rows.
    """
    if len(rows) < len(free):
        raise ValueError(f"{len(rows)} measurements cannot fix {len(free)} parameters; measure more, or free fewer")
    start = start or Fit()
    # Logarithms keep every parameter above 0, and the exponent above 1.
    point = np.log([max(getattr(start, name) - (name == "exponent"), _LEAST) for name in free])
    damping, misses = 1e-2, _misses(rows, _at(start, free, point))
    for _ in range(_ROUNDS):
        slope = _slope(rows, start, free, point, misses)
        square = slope.T @ slope
        step = np.linalg.solve(square + damping * (np.diag(square.diagonal()) + _LEAST * np.eye(len(free))), -slope.T @ misses)
        moved = point + np.clip(step, -1, 1)
        after = _misses(rows, _at(start, free, moved))
        if after @ after < misses @ misses:
            point, misses, damping = moved, after, damping / 3
        else:
            damping *= 4
    return _at(start, free, point)


def measured_rows() -> list[Row]:
    """Those of profiles/devices/measured.toml, in its order."""
    facts = read_toml(shipped_devices() / f"{MEASURED}.toml")
    return [
        Row(Device.load(series["device"]), ModelCost.of(facts["models"][series["model"]]), Work(tokens), ms / 1e3)
        for series in facts["series"]
        for tokens, ms in zip(facts["tokens"], series["ms"], strict=True)
    ]


def _at(start: Fit, free: Sequence[str], point: np.ndarray) -> Fit:
    return replace(start, **{name: float(np.exp(value)) + (name == "exponent") for name, value in zip(free, point, strict=True)})


def _misses(rows: Sequence[Row], fit: Fit) -> np.ndarray:
    """log(predicted / measured) of each row."""
    return np.log1p([row.error(fit) for row in rows])


def _slope(rows: Sequence[Row], start: Fit, free: Sequence[str], point: np.ndarray, misses: np.ndarray) -> np.ndarray:
    """How the misses change with each coordinate of ``point``, [rows, free]."""
    width = 1e-4
    nudged = point + width * np.eye(len(free))
    return np.stack([(_misses(rows, _at(start, free, one)) - misses) / width for one in nudged], axis=1)
