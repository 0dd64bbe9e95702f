"""Memory of several processes together: proportional set sizes, in which a page that two processes share counts half in each."""

from __future__ import annotations

from collections.abc import Mapping

import psutil


def pss_mb(processes: Mapping[str, int]) -> dict[str, float]:
    """MB (10⁶ bytes) by name, of processes by pid. Linux (/proc/PID/smaps_rollup); empty elsewhere.

    A page is shared with every process of the machine that maps it, so what a set of processes holds is its own only while it runs alone.
    """
    sizes = {name: getattr(psutil.Process(pid).memory_full_info(), "pss", None) for name, pid in processes.items()}
    return {name: size / 1e6 for name, size in sizes.items() if size is not None}
