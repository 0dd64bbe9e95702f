"""A device as the runner sees it: one stream of work, events, pinned memory, graphs, memory figures.

The runner is written against ``Accelerator``. On a CPU ``HostAccelerator`` does everything at once, and a graph is the function that was
captured, called again; so every line of the runner but those of ``CudaAccelerator`` runs in tests without a GPU.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import psutil
import torch
from torch import Tensor

from mqlab.model.attention import use_threads

_WARM_UPS = 2
"""Calls before a capture: what compiles, or allocates once and for all, may not be captured."""


@dataclass(frozen=True)
class Memory:
    """A device's memory in bytes.

    Attributes:
        total: that it has.
        free: that nobody holds, this process or another.
        held: that torch has taken from the device, in use or kept for later.
        used: of that, in use now.
        peak: the most that was in use since ``reset_peak``.
    """

    total: int
    free: int
    held: int = 0
    used: int = 0
    peak: int = 0


class Event(Protocol):
    """A place in the stream of work."""

    def record(self) -> None:
        """Mark the place behind all that was enqueued."""
        ...

    def wait(self) -> None:
        """Block until the device has come to it; at once where it was never recorded."""
        ...

    def ns_since(self, earlier: Any) -> int:
        """Device time between two places that it has passed."""
        ...


class Accelerator(Protocol):
    """A device with one stream."""

    @property
    def device(self) -> torch.device:
        """Where tensors go."""
        ...

    def active(self) -> AbstractContextManager[None]:
        """What is enqueued within goes to the stream, from whichever thread."""
        ...

    def event(self) -> Event:
        """A new one."""
        ...

    def pinned(self, size: int, dtype: torch.dtype) -> Tensor:
        """[size] of host memory that the device copies from and to by itself."""
        ...

    def capture(self, run: Callable[[], None]) -> Callable[[], None]:
        """A function that enqueues what ``run`` does, on the same memory. ``run`` neither waits for the device nor copies to the host; what
        it reads and writes stays where it is. Called within ``active``; all captures share one pool of memory."""
        ...

    def memory(self) -> Memory:
        """Its figures now."""
        ...

    def reset_peak(self) -> None:
        """Count ``peak`` from now on."""
        ...

    def finish(self) -> None:
        """Block until all that was enqueued is done."""
        ...

    def release(self) -> None:
        """Give back to the device what torch keeps and nobody uses."""
        ...


class CudaEvent:
    """An event of CUDA, with time."""

    def __init__(self) -> None:
        self.raw = torch.cuda.Event(enable_timing=True)

    def record(self) -> None:
        """On the current stream."""
        self.raw.record()

    def wait(self) -> None:
        """The GIL is released meanwhile."""
        self.raw.synchronize()

    def ns_since(self, earlier: CudaEvent) -> int:
        """CUDA tells it to half a microsecond."""
        return round(earlier.raw.elapsed_time(self.raw) * 1e6)


class CudaAccelerator:
    """A GPU.

    Work has a stream of its own, for the default one cannot be captured. Tensors are allocated and used on it alone, so the allocator
    may hand memory on without further care.

    Args:
        index: which GPU of those that the process sees.
    """

    def __init__(self, index: int = 0) -> None:
        self._device = torch.device("cuda", index)
        self._stream = torch.cuda.Stream(self._device)
        self._pool = torch.cuda.graph_pool_handle()

    @property
    def device(self) -> torch.device:
        """The GPU."""
        return self._device

    @contextmanager
    def active(self) -> Iterator[None]:
        """The current device and stream belong to a thread, so each that enqueues says so."""
        with torch.cuda.device(self._device), torch.cuda.stream(self._stream):
            yield

    def event(self) -> CudaEvent:
        """A new one, not recorded yet."""
        return CudaEvent()

    def pinned(self, size: int, dtype: torch.dtype) -> Tensor:
        """Zeros."""
        return torch.zeros(size, dtype=dtype, pin_memory=True)

    def capture(self, run: Callable[[], None]) -> Callable[[], None]:
        """A CUDA graph. Other threads of the process may use CUDA meanwhile."""
        for _ in range(_WARM_UPS):
            run()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"):
            run()
        return graph.replay

    def memory(self) -> Memory:
        """The driver's figures, and the allocator's."""
        free, total = torch.cuda.mem_get_info(self._device)
        held, used = torch.cuda.memory_reserved(self._device), torch.cuda.memory_allocated(self._device)
        return Memory(total, free, held, used, torch.cuda.max_memory_allocated(self._device))

    def reset_peak(self) -> None:
        """Of the allocator."""
        torch.cuda.reset_peak_memory_stats(self._device)

    def finish(self) -> None:
        """The stream's work; nobody else's."""
        self._stream.synchronize()

    def release(self) -> None:
        """The allocator's cache; captures to come share a pool of their own, as those before may be gone with theirs."""
        torch.cuda.empty_cache()
        self._pool = torch.cuda.graph_pool_handle()


class HostEvent:
    """A moment: work is done when it has been enqueued."""

    def __init__(self) -> None:
        self._ns = 0

    def record(self) -> None:
        """Now."""
        self._ns = time.monotonic_ns()

    def wait(self) -> None:
        """It has passed."""

    def ns_since(self, earlier: HostEvent) -> int:
        """Time of the clock."""
        return self._ns - earlier._ns


class HostAccelerator:
    """This CPU.

    Args:
        threads: of torch, for what runs within ``active``.
    """

    def __init__(self, threads: int = 1) -> None:
        self._threads = threads

    @property
    def device(self) -> torch.device:
        """The CPU."""
        return torch.device("cpu")

    @contextmanager
    def active(self) -> Iterator[None]:
        """With as many threads as it was given."""
        use_threads(self._threads)
        yield

    def event(self) -> HostEvent:
        """A new one."""
        return HostEvent()

    def pinned(self, size: int, dtype: torch.dtype) -> Tensor:
        """Zeros in ordinary memory."""
        return torch.zeros(size, dtype=dtype)

    def capture(self, run: Callable[[], None]) -> Callable[[], None]:
        """The function itself: it reads and writes the same memory whenever it is called."""
        return run

    def memory(self) -> Memory:
        """The machine's."""
        memory = psutil.virtual_memory()
        return Memory(memory.total, memory.available)

    def reset_peak(self) -> None:
        """Nobody counts."""

    def finish(self) -> None:
        """It is done."""

    def release(self) -> None:
        """The C library keeps what it likes."""
