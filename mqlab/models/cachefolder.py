"""A cached folder appears whole or not at all, and is built by one process at a time."""

from __future__ import annotations

import fcntl
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from mqlab.errors import ModelError


def build_once(target: Path, build: Callable[[Path], None]) -> Path:
    """Return ``target``; where it does not exist yet, have ``build`` fill a folder beside it and rename that.

    Any number of threads and processes may ask at once: one builds, the others wait for its result. What a killed build
    left behind is removed by the next.

    Raises:
        ModelError: the cache cannot be written.
    """
    if target.is_dir():
        return target
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with _locked(target.with_name(f".{target.name}.lock")):
            if not target.is_dir():
                _build(target, build)
    except OSError as error:
        raise ModelError(
            f"cannot write the model cache at {target}: {error}; free some space or set MQLAB_CACHE to another folder"
        ) from error
    return target


def _build(target: Path, build: Callable[[Path], None]) -> None:
    partial = target.with_name(f".{target.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir()
    try:
        build(partial)
        partial.rename(target)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold an exclusive lock on ``path``; the kernel releases it when its holder dies."""
    with path.open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
