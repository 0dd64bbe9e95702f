"""What the device reaches at its best: what the figures of everything else are held to. Measured first, for no data sheet says it."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter_ns

import torch

from mqlab.model.measure.place import DeviceName, Place
from mqlab.model.measure.rows import COPY, Ceiling, Spread, matmul
from mqlab.model.measure.timers import spread, timer_for

_COPY_SHARE = 8
_ROUNDS = 7


def copying(*, kind: DeviceName, most_bytes: int, runs: int) -> list[Ceiling]:
    """GB/s of a large copy on the device, read and written bytes together.

    Args:
        most_bytes: of the source; less where the device has no room for it.
    """
    place = Place(kind)
    device = place.open()
    size = min(most_bytes, place.free_bytes() // _COPY_SHARE)
    source = torch.ones(size // 4, dtype=torch.float32, device=device)
    target = torch.empty_like(source)
    time = timer_for(device).time(lambda: target.copy_(source), runs)
    moved = 2 * source.nbytes
    what = f"copy of {source.nbytes / 2**20:,.0f} MiB on the device, bytes read and written"
    return [Ceiling(COPY, moved / time.median / 1e3, "GB/s", time, what)]


def multiplying(*, kind: DeviceName, size: int, dtype: str, runs: int) -> list[Ceiling]:
    """TFLOP/s of the product of two square matrices of a dtype."""
    device = Place(kind).open()
    call = _int8_product(device, size) if dtype == "int8" else _float_product(device, size, getattr(torch, dtype))
    time = timer_for(device).time(call, runs)
    unit = "TOP/s" if dtype == "int8" else "TFLOP/s"
    what = f"product of two matrices of {size} x {size}, by torch"
    return [Ceiling(matmul(dtype), 2 * size**3 / time.median / 1e6, unit, time, what)]


def _float_product(device: torch.device, size: int, dtype: torch.dtype) -> Callable[[], object]:
    left, right = torch.randn(2, size, size, device=device).to(dtype)
    out = torch.empty_like(left)
    return lambda: torch.mm(left, right.t(), out=out)


def _int8_product(device: torch.device, size: int) -> Callable[[], object]:
    left, right = torch.randint(-128, 128, (2, size, size), dtype=torch.int8, device=device)
    return lambda: torch.ops.aten._int_mm(left, right.t())


def launching(*, kind: DeviceName, times: int) -> list[Ceiling]:
    """µs that a launch takes of the host and the device: one behind the other, in a graph, and with a wait for it."""
    place = Place(kind)
    device = place.open()
    one = torch.zeros(1, device=device)
    timer = timer_for(device)
    bare = _each(lambda: timer.run(lambda: one.add_(1), times), times)
    least = timer.time(lambda: one.add_(1), times)
    rows = [Ceiling("a kernel", least.median, "µs", least, "of one number, timed as kernels are: what no time below falls under")]
    rows += [Ceiling("launch", bare.median, "µs", bare, f"each of {times} launches one behind the other")]
    if device.type == "cuda":
        replay = _captured(lambda: one.add_(1), times)
        graph = _each(lambda: timer.run(replay, 1), times)
        rows.append(Ceiling("launch in a graph", graph.median, "µs", graph, f"each of {times} kernels of a CUDA graph"))
    waited = spread([_waited_us(place, lambda: one.add_(1)) for _ in range(times)])
    rows.append(Ceiling("launch and wait", waited.median, "µs", waited, "of the host, from the launch until it is seen to be done"))
    return rows


def _each(measure: Callable[[], float], times: int) -> Spread:
    return spread([measure() / times for _ in range(_ROUNDS)])


def _captured(call: Callable[[], object], times: int) -> Callable[[], None]:
    """A graph of so many calls; ``call`` has run before."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(times):
            call()
    return graph.replay


def _waited_us(place: Place, call: Callable[[], object]) -> float:
    begin = perf_counter_ns()
    call()
    place.wait()
    return (perf_counter_ns() - begin) / 1e3
