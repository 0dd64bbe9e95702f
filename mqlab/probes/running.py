"""Running engines as somebody else sees them: which there are, their processes, what they record."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path

import psutil

from mqlab.errors import ConfigError
from mqlab.probes.recording import Recording
from mqlab.wire.registry import Entry, Registry


def find(target: str | None) -> Entry:
    """The running engine that a pid, URL or socket names; the only one there is, for None.

    Raises:
        ConfigError: there is none, or more than one to choose from.
    """
    registry = Registry()
    entry = registry.find(target) if target is not None else None
    if entry is not None:
        return entry
    entries = registry.entries()
    if target is None and len(entries) == 1:
        return entries[0]
    if not entries:
        raise ConfigError("no engine of this user is running; 'mqlab serve MODEL' starts one")
    which = "which one?" if target is None else f"no engine {target!r} is running;"
    raise ConfigError(f"{which} there are:\n{table(entries)}")


def pids(entry: Entry) -> dict[str, int]:
    """The engine's processes by role, ``front`` and ``engine``; both may be one."""
    if entry.recording is not None:
        found = _recorded(Path(entry.recording))
        if found:
            return found
    if entry.role == "session" and entry.owner_pid != entry.pid and psutil.Process(entry.pid).ppid() == entry.owner_pid:
        return {"front": entry.owner_pid, "engine": entry.pid}
    below = [child.pid for child in psutil.Process(entry.pid).children() if "mqlab.wire.boot" in child.cmdline()]
    return {"front": entry.pid, "engine": below[0] if below else entry.pid}


def table(entries: Sequence[Entry]) -> str:
    """One line each: pid, age, model, layout, how it is reached, who started it."""
    rows = [("PID", "UP", "MODEL", "TOPOLOGY", "URL", "STARTED BY"), *map(_row, entries)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows)


def _row(entry: Entry) -> tuple[str, ...]:
    owner = "itself" if entry.owner_pid == entry.pid else f"pid {entry.owner_pid}"
    up = str(timedelta(seconds=round(entry.age_s)))
    return str(entry.pid), up, entry.model, entry.topology, entry.url or "-", owner


def _recorded(folder: Path) -> dict[str, int]:
    recording = Recording(folder)
    writers = recording.processes()
    recording.close()
    found = {writer.rpartition("-")[0]: pid for writer, pid in writers.items() if psutil.pid_exists(pid)}
    return {role: found[role] for role in ("front", "engine") if role in found}
