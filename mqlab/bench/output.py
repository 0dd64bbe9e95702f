"""Where results go: found out before a run, written after it; and what is told on the way."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Protocol, TypeVar

from mqlab.errors import ConfigError


def check_output(path: str | None) -> None:
    """Find out before the run whether ``--output-json`` can be written.

    Raises:
        ConfigError: it cannot.
    """
    if path is not None:
        check_place(Path(path), "--output-json")


def check_place(path: Path, flag: str) -> None:
    """Find out before the run whether its result can be written as ``path``.

    Raises:
        ConfigError: names ``flag`` and the remedy.
    """
    folder = path.resolve().parent
    if not folder.is_dir():
        raise ConfigError(f"{flag}={str(path)!r}: its folder does not exist; make it first")
    if path.is_dir():
        raise ConfigError(f"{flag}={str(path)!r} is a folder; name a file in it")
    if not os.access(path if path.exists() else folder, os.W_OK):
        raise ConfigError(f"{flag}={str(path)!r} may not be written by this user; name another file")


def check_new_folder(folder: Path, flag: str) -> None:
    """Make a folder where it is missing.

    Raises:
        ConfigError: it cannot be made.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"{flag}={str(folder)!r} cannot be made a folder ({error.strerror}); name another") from None


def write_output(path: str | None, record: Mapping[str, Any]) -> None:
    """Write a result where one was asked for; a file that is there is replaced whole or not at all, where its folder can be written."""
    if path is None:
        return
    text, file = json.dumps(record, indent=2) + "\n", Path(path).resolve()
    if (file.exists() and not file.is_file()) or not os.access(file.parent, os.W_OK):  # /dev/stdout, for one
        file.write_text(text, encoding="utf-8")
        return
    new = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        new.write_text(text, encoding="utf-8")
        new.replace(file)
    finally:
        new.unlink(missing_ok=True)


class Recorded(Protocol):
    """A result that can be written."""

    def as_record(self) -> Mapping[str, Any]:
        """For JSON."""
        ...


R = TypeVar("R", bound=Recorded)


def read_output(path: str | Path, kind: str, make: Callable[[dict[str, Any]], R]) -> R:
    """A result as it was written.

    Args:
        kind: what it should be, and of which command, for whoever gave another file.
        make: the result of its record.

    Raises:
        ConfigError: there is no such file, or it is something else.
    """
    try:
        return make(json.loads(Path(path).read_text(encoding="utf-8")))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{path} is no {kind} ({type(error).__name__}: {error}); run it to make one") from error


def told(run: Callable[[], R], output_json: str | None, notes: Iterable[str] = ()) -> R:
    """A benchmark's result, printed and, where asked for, written to a file; what was asked for and is not done is told before.

    Raises:
        ConfigError: the file cannot be written, which is found out before the run. Others as ``run``.
    """
    tell(notes)
    check_output(output_json)
    result = run()
    try:
        write_output(output_json, result.as_record())  # first: the reader of what is printed may be gone
    finally:
        print(result)
    return result


def tell(notes: Iterable[str]) -> None:
    """Say on stderr what was asked for and is not done."""
    for note in notes:
        print(f"mqlab: {note}", file=sys.stderr)
