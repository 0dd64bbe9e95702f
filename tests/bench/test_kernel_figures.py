"""What kernels take and what they could reach, as notebooks show it."""

from __future__ import annotations

from pathlib import Path

import pytest

from mqlab.bench.compiled import plot_sweep, read_compiled
from mqlab.bench.roofline import DEVICES, Peaks, Work, floors, plot_roofline

TABLES = Path(__file__).resolve().parents[2] / "profiles" / "kernels"
PNG = b"\x89PNG"

# Of a Llama 8B layer: 64 sequences with 4,096 tokens of context each, and a prompt of 8,192.
DECODE = Work("paged_decode", "decode", moved=1_074_790_400, flops=4_294_967_296)
PREFILL = Work("prefill_attention", "prefill", moved=167_772_160, flops=549_822_922_752)
INT8 = Work("int8_gemm", "int8", moved=1_000_000, flops=4_000_000_000)


def test_decode_is_held_up_by_memory_and_prefill_by_arithmetic() -> None:
    frame = floors([DECODE, PREFILL, Work("gated", "no products", moved=2_039_000, flops=0)])
    assert frame["held up by"].tolist() == ["memory", "arithmetic", "memory"]
    assert frame["a100, µs"].tolist() == pytest.approx([527.1, 1762.3, 1.0], rel=1e-3)
    assert (frame["h200, µs"] <= frame["a100, µs"]).all()


def test_int8_counts_twice() -> None:
    peaks = Peaks.of("h100")
    assert peaks.floor_us(INT8) == pytest.approx(4e9 / (2 * peaks.flops) * 1e6)
    assert peaks.rate(1e6, int8=True) == 2 * peaks.rate(1e6) == 2 * peaks.flops
    assert peaks.rate(2.0) == 2 * peaks.bandwidth


def test_the_roofline_is_drawn() -> None:
    plot = plot_roofline([DECODE, PREFILL])
    assert plot._repr_png_().startswith(PNG)
    assert repr(plot) == f"Plot(2 uses of kernels under the roofs of {len(DEVICES)} devices, nothing measured yet)"


def test_committed_tables_are_read_and_drawn() -> None:
    frame = read_compiled(TABLES)
    shipped = frame[frame["shipped"]]
    assert set(frame["sm"]) == {80, 90, 100}
    assert (shipped["spills"] == 0).all()
    assert plot_sweep(frame, "paged_decode", 90)._repr_png_().startswith(PNG)


def test_work_is_counted_without_memory() -> None:
    from mqlab.model.measure.work import work_of

    sizes = {"heads": 32, "kv_heads": 8, "size": 128, "batch": 64, "context": 4096}
    assert work_of("paged_decode", "bfloat16", sizes) == (DECODE.moved, DECODE.flops)
