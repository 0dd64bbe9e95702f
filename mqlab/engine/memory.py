"""What the process holds, and giving back what it does not need."""

from __future__ import annotations

import ctypes
import gc


def resident() -> int:
    """Bytes of this process in memory (RSS)."""
    import psutil  # only an engine whose model comes and goes asks

    return psutil.Process().memory_info().rss


def reclaim() -> None:
    """Collect what is unreachable, and hand freed memory back to the kernel where the C library keeps it (glibc's malloc_trim)."""
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
