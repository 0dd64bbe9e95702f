"""What a number must be told with: commit, host, processor, versions, date. No part of it can fail; what is not known is absent."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

META = "meta.json"

PACKAGES = (
    "mqlab",
    "torch",
    "triton",
    "transformers",
    "tokenizers",
    "numpy",
    "numba",
    "pyzmq",
    "msgspec",
    "uvloop",
    "starlette",
    "uvicorn",
)

_ROOT = Path(__file__).resolve().parents[2]
_BOUND_S = 5.0


def environment() -> dict[str, Any]:
    """Where and with what this process runs, fit for JSON.

    Keys, each absent where it cannot be known: ``date`` (UTC, ISO 8601), ``commit`` and ``dirty`` (a checkout of mqlab only),
    ``host``, ``system``, ``boot_id`` (one clock per boot), ``cpu``, ``cores`` (of the machine), ``cores_usable`` (of this process),
    ``memory_bytes``, ``gpus`` (names), ``python`` and ``versions`` (by package, read from their metadata: nothing is imported).
    """
    facts = {"date": datetime.now(UTC).isoformat(timespec="seconds"), **_machine(), **_commit()}
    return {key: value for key, value in facts.items() if value not in (None, "", [])}


def write_meta(folder: Path, **facts: Any) -> None:
    """Write ``folder/meta.json``: the environment and what the caller knows of the run, such as config and seed.

    It appears whole or not at all. What JSON has no word for is written as text.
    """
    text = json.dumps({**environment(), **facts}, indent=1, default=str)
    scratch = folder / f".{META}.{os.getpid()}"
    scratch.write_text(text, encoding="utf-8")
    scratch.replace(folder / META)


def read_meta(folder: Path) -> tuple[dict[str, Any], list[str]]:
    """What ``folder/meta.json`` says, and a note where it is missing or cannot be read."""
    try:
        found = json.loads((folder / META).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}, [f"{folder.name} has no {META}: host, versions and settings of the run are not known"]
    except (ValueError, OSError) as error:
        return {}, [f"{META} of {folder.name} cannot be read ({error}): host, versions and settings of the run are not known"]
    return (found, []) if isinstance(found, dict) else ({}, [f"{META} of {folder.name} holds no object: it is left out"])


@cache
def _machine() -> dict[str, Any]:
    return {
        "host": platform.node(),
        "system": f"{platform.system()} {platform.release()}",
        "boot_id": _text("/proc/sys/kernel/random/boot_id"),
        "cpu": _cpu() or platform.processor(),
        "cores": os.cpu_count(),
        "cores_usable": len(os.sched_getaffinity(0)) if sys.platform == "linux" else None,
        "memory_bytes": _memory(),
        "gpus": _said("nvidia-smi", "--query-gpu=name", "--format=csv,noheader").splitlines(),
        "python": platform.python_version(),
        "versions": dict(_versions()),
    }


def _commit() -> dict[str, Any]:
    if not (_ROOT / ".git").exists():  # else git would find the checkout of whoever has mqlab installed inside it
        return {}
    git = ("git", f"--git-dir={_ROOT / '.git'}", f"--work-tree={_ROOT}")
    commit = _said(*git, "rev-parse", "HEAD").strip()
    return {"commit": commit, "dirty": bool(_said(*git, "status", "--porcelain", "--untracked-files=no"))} if commit else {}


def _versions() -> Iterator[tuple[str, str]]:
    for package in PACKAGES:
        try:
            yield package, version(package)
        except PackageNotFoundError:
            continue


def _cpu() -> str | None:
    lines = (line.partition(":") for line in _text("/proc/cpuinfo").splitlines())
    return next((value.strip() for name, _, value in lines if name.strip() == "model name"), None)


def _memory() -> int | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError):
        return None


def _text(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8").strip()
    except OSError:
        return ""


def _said(*command: str) -> str:
    """What a program wrote, nothing where it is missing, fails or takes too long."""
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_BOUND_S, check=True)
    except (OSError, subprocess.SubprocessError, UnicodeDecodeError):
        return ""
    return done.stdout
