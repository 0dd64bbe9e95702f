"""Which processes a capture looks at."""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import psutil

_VERSION = re.compile(r"python(\d+\.\d+)")


def labelled(targets: int | Mapping[str, int]) -> dict[str, int]:
    """Pids by name, each pid once: a process with two roles has both names, joined by a plus."""
    named = {f"process {targets}": targets} if isinstance(targets, int) else targets
    roles: dict[int, list[str]] = {}
    for role, pid in named.items():
        roles.setdefault(pid, []).append(role)
    return {"+".join(names): pid for pid, names in roles.items()}


def with_children(named: Mapping[str, int]) -> tuple[dict[str, int], list[str]]:
    """These processes and the Python ones below them, and a sentence for each one below them that is not Python."""
    found, notes, known = dict(named), list[str](), set(named.values())
    for role, pid in named.items():
        for child in _below(pid):
            if child.pid in known:
                continue
            known.add(child.pid)
            if python_version(child.pid):
                found[f"{role} child {child.pid}"] = child.pid
            else:
                notes.append(f"process {child.pid} ({_name(child)}), below {role}, is not Python and was not sampled")
    return found, notes


def python_version(pid: int) -> str:
    """The interpreter's version, like "3.12"; "?" for a Python that does not tell; empty for another program, or none."""
    with suppress(psutil.Error, OSError):
        program = Path(psutil.Process(pid).exe()).name
        found = _VERSION.search(program) or _VERSION.search(_libraries(pid))
        return found[1] if found else "?" if program.lower().startswith("python") else ""
    return ""


def has_ended(pid: int) -> bool:
    """Whether a process is gone, or dead and not yet reaped."""
    try:
        return psutil.Process(pid).status() in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
    except psutil.NoSuchProcess:
        return True


def _libraries(pid: int) -> str:
    with suppress(OSError):
        return "\n".join(re.findall(r"libpython[^/\n]*", Path(f"/proc/{pid}/maps").read_text()))
    return ""


def _below(pid: int) -> list[psutil.Process]:
    with suppress(psutil.Error):
        return psutil.Process(pid).children(recursive=True)
    return []


def _name(process: psutil.Process) -> str:
    with suppress(psutil.Error):
        return process.name()
    return "gone"
