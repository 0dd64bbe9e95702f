"""Which CPUs a process may use, every thread of it. Linux."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from mqlab.errors import ConfigError
from mqlab.wire.process import RANK


def parse_cores(text: str) -> tuple[set[int], set[int]]:
    """CPUs of front and engine from ``FRONT/ENGINE``, each like ``0``, ``0-3`` or ``0+2``.

    Raises:
        ConfigError: not of that form, or a CPU that this process may not use.
    """
    front, slash, engine = text.partition("/")
    try:
        cores = _parse(front), _parse(engine)
    except ValueError:
        slash = ""
        cores = (set[int](), set[int]())
    if not slash or not all(cores):
        raise ConfigError(f"--cores={text!r} is not FRONT/ENGINE with CPUs like 0, 0-3 or 0+2, for example 0/1")
    allowed = os.sched_getaffinity(0)
    if beyond := sorted((cores[0] | cores[1]) - allowed):
        raise ConfigError(f"--cores={text!r} names CPU {beyond[0]}; this process may use {', '.join(map(str, sorted(allowed)))}")
    return cores


def pin(cores: str | None, pids: Mapping[str, int]) -> None:
    """Hold the processes ``front`` and ``engine``, with all their threads, to their CPUs; None leaves them free.

    Ranks that share the model have the engine's CPUs. Any other process does a part of the front's work, and shares its CPUs.

    Raises:
        ConfigError: as ``parse_cores``; or both are one process and shall have different CPUs.
    """
    if cores is None:
        return
    front, engine = parse_cores(cores)
    if pids["front"] == pids["engine"] and front != engine:
        raise ConfigError(f"--cores={cores!r}: front and engine are one process in this layout; give both the same CPUs")
    for role, pid in pids.items():
        cpus = engine if role == "engine" or role.startswith(RANK) else front
        for thread in Path(f"/proc/{pid}/task").iterdir():
            os.sched_setaffinity(int(thread.name), cpus)


def _parse(text: str) -> set[int]:
    cpus: set[int] = set()
    for part in text.split("+"):
        low, dash, high = part.partition("-")
        cpus.update(range(int(low), int(high if dash else low) + 1))
    return cpus
