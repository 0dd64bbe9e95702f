"""The other processes that share an engine's model, as anybody on this machine sees them: they are the engine's, whatever its layout."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from mqlab.wire.process import RANK

if TYPE_CHECKING:
    import psutil

_BOOT = "mqlab.wire.boot"


def with_ranks(pids: Mapping[str, int]) -> dict[str, int]:
    """Process ids by role, with those of the ranks that the process ``engine`` has now: ``rank-1``, ``rank-2``, … Of two models in one
    process both have a ``rank-1``; the second one's role then ends with its pid.

    Args:
        pids: by role; ranks among them may be gone.
    """
    found = {role: pid for role, pid in pids.items() if not role.startswith(RANK)}
    if "engine" in found:
        for role, pid in _ranks_of(found["engine"]):
            found[role if role not in found else f"{role} {pid}"] = pid
    return found


def _ranks_of(engine: int) -> list[tuple[str, int]]:
    import psutil  # here: to load it would cost every engine a part of its start

    try:
        process = psutil.Process(engine)
        children = process.children()
        told = list(_told_by_torchrun(process))
    except psutil.Error:
        return []
    launched = [(command[-1], child.pid) for child in children if _BOOT in (command := _command(child)) and command[-1].startswith(RANK)]
    return sorted([*launched, *told], key=lambda one: (number_of(one[0]), one[1]))


def number_of(role: str) -> int:
    """Of a rank, for ten comes after nine."""
    return int(role.removeprefix(RANK).split()[0])


def _told_by_torchrun(engine: psutil.Process) -> Iterator[tuple[str, int]]:
    """Those of this machine that torchrun has started as it has started the engine, or the server that did."""
    if _rank(engine) is None:
        return
    launcher = next((one for one in engine.parents() if _rank(one) is None), None)
    for child in () if launcher is None else launcher.children():
        if (rank := _rank(child)) is not None and rank != "0":
            yield f"{RANK}{rank}", child.pid


def _command(process: psutil.Process) -> list[str]:
    """Empty where it is gone."""
    import psutil

    try:
        return process.cmdline()
    except psutil.Error:
        return []


def _rank(process: psutil.Process) -> str | None:
    """As torchrun has told it; None where it has not, or may not be asked."""
    import psutil

    try:
        environment = process.environ()
    except psutil.Error:
        return None
    return environment.get("RANK") if "TORCHELASTIC_RUN_ID" in environment else None
