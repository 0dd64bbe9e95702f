"""How fast kernels could be at best: the bytes and operations that their work needs, over what devices can move and compute.

Source of the model: Williams, Waterman, Patterson, "Roofline" (2009). Peaks are those of profiles/devices; a kernel without products of
tiles has no operations that count, and is held up by memory alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mqlab.model.measure.rows import Timed
from mqlab.models.devices import device_file, read_toml
from mqlab.record.plot import BLUE, GREEN, ORANGE, PURPLE, SKY, VERMILION, Plot, subplots

if TYPE_CHECKING:
    import pandas

    from mqlab.bench.device.result import DeviceResult

DEVICES = ("a100", "h100", "h200")
_INT8 = 2.0
"""Operations on int8 that tensor cores do in the time of one on bfloat16, on all of ``DEVICES``."""

_LOOKS = {"paged_decode": (ORANGE, "o"), "prefill_attention": (BLUE, "s"), "int8_gemm": (GREEN, "^")}
_LINES = ((VERMILION, ":"), (PURPLE, "-"), (SKY, "--"))


@dataclass(frozen=True)
class Work:
    """What a kernel has to do in one case, as ``mqlab.model.measure.work.work_of`` counts it.

    Attributes:
        moved: bytes, each once.
        flops: operations in products of tiles.
    """

    kernel: str
    case: str
    moved: int
    flops: int

    @property
    def intensity(self) -> float:
        """Operations a byte."""
        return self.flops / self.moved


@dataclass(frozen=True)
class Peaks:
    """A device at its best, by its maker's sheet.

    Attributes:
        bandwidth: bytes/s.
        flops: operations/s in bfloat16, dense.
    """

    name: str
    bandwidth: float
    flops: float

    @classmethod
    def of(cls, device: str) -> Peaks:
        """Of a device of profiles/devices, by its name or an alias."""
        facts = read_toml(device_file(device))
        return cls(facts["title"], facts["bandwidth_tb_s"] * 1e12, facts["tflops"] * 1e12)

    def rate(self, intensity: float, *, int8: bool = False) -> float:
        """Operations/s at best where each byte brings that many."""
        return min(self.bandwidth * intensity, self.flops * (_INT8 if int8 else 1.0))

    def floor_us(self, work: Work) -> float:
        """µs that the work takes at least."""
        return 1e6 * max(self.times(work))

    def times(self, work: Work) -> tuple[float, float]:
        """Seconds of moving alone and of computing alone."""
        return work.moved / self.bandwidth, work.flops / self.rate(float("inf"), int8=work.kernel == "int8_gemm")


def floors(works: Sequence[Work], devices: Sequence[str] = DEVICES) -> pandas.DataFrame:
    """A row each: ``MB``, ``FLOP/B``, what holds it up on the first device, and µs at least on each."""
    import numpy
    import pandas

    peaks = {device: Peaks.of(device) for device in devices}
    first = next(iter(peaks.values()))
    rows = [
        {
            "kernel": work.kernel,
            "case": work.case,
            "MB": work.moved / 1e6,
            "FLOP/B": work.intensity,
            "held up by": ("memory", "arithmetic")[int(numpy.argmax(first.times(work)))],
            **{f"{device}, µs": peak.floor_us(work) for device, peak in peaks.items()},
        }
        for work in works
    ]
    return pandas.DataFrame(rows)


def plot_roofline(works: Sequence[Work], devices: Sequence[str] = DEVICES, measured: Sequence[DeviceResult] = ()) -> Plot:
    """Operations/s over operations a byte: what devices allow, where the kernels' work lies under it, and what was measured.

    Hollow marks lie on the roof of the middle device: where the work would be at best. Full ones are measured.
    """
    figure, axes = subplots(8.5, 5.0)
    peaks = [Peaks.of(device) for device in devices]
    for (colour, line), peak in zip(_LINES, peaks, strict=False):
        _roof(axes, peak, colour, line)
    home = peaks[len(peaks) // 2]
    for kernel, (colour, marker) in _LOOKS.items():
        _marks(axes, home, [work for work in works if work.kernel == kernel], colour, marker)
    timed = [row for result in measured for row in result.of(Timed) if row.kernel in _LOOKS and row.flops]
    for row in timed:
        colour, marker = _LOOKS[row.kernel]
        axes.plot(row.flops / row.moved, row.flops / row.time.median / 1e6, marker, color=colour, markersize=6)
    axes.set(xscale="log", yscale="log", xlabel="operations a byte", ylabel="TFLOP/s (int8: TOP/s)", xlim=(1, 6000))
    axes.grid(alpha=0.3, which="both", linewidth=0.4)
    axes.legend(frameon=False, fontsize=8, loc="lower right")
    shown = f"{len(timed)} measured" if timed else "nothing measured yet"
    axes.set_title(f"hollow: at best on {home.name}; full: measured ({shown})", fontsize=9)
    return Plot(figure, f"{sum(work.kernel in _LOOKS for work in works)} uses of kernels under the roofs of {len(peaks)} devices, {shown}")


def _roof(axes: Any, peak: Peaks, colour: str, line: str) -> None:
    import numpy

    at = numpy.geomspace(1, 6000, 400)
    axes.plot(at, [peak.rate(one) / 1e12 for one in at], line, color=colour, linewidth=1.4, label=peak.name)
    axes.plot(at, [peak.rate(one, int8=True) / 1e12 for one in at], line, color=colour, linewidth=0.7, alpha=0.6)


def _marks(axes: Any, peak: Peaks, works: Sequence[Work], colour: str, marker: str) -> None:
    """The uses of one kernel, at best."""
    if works:
        at = [work.intensity for work in works]
        rates = [peak.rate(work.intensity, int8=work.kernel == "int8_gemm") / 1e12 for work in works]
        axes.plot(at, rates, marker, color=colour, fillstyle="none", markersize=7, label=works[0].kernel)
