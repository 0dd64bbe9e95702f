"""What is wanted of kernels, steps and engines on a GPU, and whether it was reached."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from mqlab.bench.device.jobs import BIG_MODEL, SMALL_MODEL, WANTED_DECODE, WANTED_PREFILL
from mqlab.model.measure.rows import COPY, Agreement, EngineRate, StepTime, Timed
from mqlab.record.stats import bootstrap_ratio

if TYPE_CHECKING:
    from mqlab.bench.device.result import DeviceResult

State = Literal["reached", "missed", "not measured"]

DECODE_SHARE = 0.85
PREFILL_SHARE = 0.60
STEP_RATIO = 1.25
LAYOUT_RATIO = 0.98


@dataclass(frozen=True)
class Goal:
    """One figure.

    Attributes:
        value: that was measured, in words; why there is none where it was not.
    """

    figure: str
    wanted: str
    state: State
    value: str

    def __str__(self) -> str:
        return f"{self.state}: {self.figure} {self.wanted}: {self.value}"


def goals(result: DeviceResult) -> list[Goal]:
    """One for each figure. Where kernels were interpreted, or sizes are small, only correctness counts."""
    return [_correct(result), _decode(result), _prefill(result), *_steps(result), *_layouts(result)]


def _correct(result: DeviceResult) -> Goal:
    found = result.of(Agreement)
    figure, wanted = "kernels agree with their references", "in every case"
    if not found:
        return Goal(figure, wanted, "not measured", "no case was run")
    wrong = [f"{row.kernel} ({row.case}, {row.dtype})" for row in result.wrong]
    value = f"{len(found) - len(wrong)} of {len(found)}" + (f"; not {', '.join(wrong)}" if wrong else "")
    return Goal(figure, wanted, "missed" if wrong else "reached", value)


def _decode(result: DeviceResult) -> Goal:
    row, copy = _timed(result, "paged_decode", WANTED_DECODE), result.ceiling(COPY)
    share = row.moved / row.time.median / 1e3 / copy if row and copy else None
    return _share(result, f"paged decode, {WANTED_DECODE}", "of the copy bandwidth", DECODE_SHARE, share)


def _prefill(result: DeviceResult) -> Goal:
    row = _timed(result, "prefill_attention", WANTED_PREFILL)
    ceiling = result.ceiling(row.ceiling) if row else None
    share = row.flops / row.time.median / 1e6 / ceiling if row and ceiling else None
    return _share(result, f"prefill attention, {WANTED_PREFILL}", "of the matmul ceiling", PREFILL_SHARE, share)


def _steps(result: DeviceResult) -> Iterator[Goal]:
    rows = [row for row in result.of(StepTime) if row.model == BIG_MODEL and row.mode == "graph"] if result.is_real else []
    wanted = f"within {STEP_RATIO} x the bandwidth floor"
    for row in rows:
        floor = result.floor_us(row)
        figure = f"decode step of {BIG_MODEL}, batch {row.batch}, context {row.context}"
        if floor is None:
            yield Goal(figure, wanted, "not measured", "no ceiling was measured")
            continue
        ratio = row.time.median / floor
        yield Goal(figure, wanted, "reached" if ratio <= STEP_RATIO else "missed", f"{ratio:.2f} x ({row.time.median / 1e3:.2f} ms)")
    if not rows:
        yield Goal(f"decode step of {BIG_MODEL}", wanted, "not measured", _why(result))


def _layouts(result: DeviceResult) -> Iterator[Goal]:
    for model in (BIG_MODEL, SMALL_MODEL):
        rates = {row.layout: row.tokens_per_s for row in result.of(EngineRate) if row.model == model} if result.is_real else {}
        figure, wanted = f"v1 over sync, {model}", f">= {LAYOUT_RATIO}"
        if "v1" in rates and "sync" in rates:
            ratio = bootstrap_ratio(rates["v1"], rates["sync"])
            yield Goal(figure, wanted, "reached" if ratio.value >= LAYOUT_RATIO else "missed", str(ratio))
        else:
            yield Goal(figure, wanted, "not measured", _why(result))


def _timed(result: DeviceResult, kernel: str, case: str) -> Timed | None:
    found = [row for row in result.of(Timed) if (row.kernel, row.case) == (kernel, case)] if result.is_real else []
    return found[0] if found else None


def _share(result: DeviceResult, figure: str, of: str, wanted: float, share: float | None) -> Goal:
    words = f">= {wanted:.0%} {of}"
    if share is None:
        return Goal(figure, words, "not measured", _why(result))
    return Goal(figure, words, "reached" if share >= wanted else "missed", f"{share:.1%}")


def _why(result: DeviceResult) -> str:
    if result.facts.kind != "cuda":
        return "there is no GPU here"
    return "see what was skipped" if result.is_real else "--size small says nothing of it"
