"""A layout in a file of the user's own: imported by its name, so that the engine's process can import it too."""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import importlib.util
import keyword
import sys
import traceback
from pathlib import Path
from types import ModuleType

from mqlab.errors import ConfigError

_loaded: dict[Path, tuple[str, ModuleType]] = {}
"""By file: the digest of the text that was imported, and what came of it."""


def is_file(topology: str) -> bool:
    """Whether a topology is named by its file."""
    return topology.endswith(".py")


def read_layout(topology: str) -> tuple[Path, str]:
    """Where a layout's file is, and a digest of its text.

    Raises:
        ConfigError: no such file, or it cannot be read.
    """
    path = Path(topology).expanduser().resolve()
    try:
        return path, hashlib.sha256(path.read_bytes()).hexdigest()
    except FileNotFoundError:
        raise ConfigError(f"--topology={topology!r}: there is no file {path}") from None
    except OSError as error:
        raise ConfigError(f"--topology={topology!r} cannot be read: {error}") from None


def load_file(topology: str) -> ModuleType:
    """The module in a file, imported anew whenever its text has changed; its folder goes to the end of ``sys.path``.

    Modules that it imports are imported once, as ever.

    Raises:
        ConfigError: no such file; its name cannot be imported, or means another module; its code fails.
    """
    path, digest = read_layout(topology)
    known = _loaded.get(path)
    if known is None or known[0] != digest:
        known = _loaded[path] = (digest, _import(path))
    return known[1]


def _import(path: Path) -> ModuleType:
    name = path.stem
    _check_name(name, path)
    with contextlib.suppress(OSError):
        # Bytecode is told apart by seconds and size, which a quick edit may leave alike; front and engine must run the same text.
        Path(importlib.util.cache_from_source(str(path))).unlink()
    sys.modules.pop(name, None)
    try:
        return importlib.import_module(name)
    except (Exception, SystemExit) as error:
        raise ConfigError(_told(path, error)) from error


def _check_name(name: str, path: Path) -> None:
    if not name.isidentifier() or keyword.iskeyword(name):
        raise ConfigError(f"{path} cannot be imported: {name!r} is not a name that a module can have; rename the file")
    folder, new = str(path.parent), str(path.parent) not in sys.path
    if new:
        sys.path.append(folder)
    taken = _taken(name, path)
    if taken is not None:
        if new:
            sys.path.remove(folder)
        raise ConfigError(f"{path} cannot be imported: the name {name!r} is taken by {taken}; rename the file")


def _taken(name: str, path: Path) -> str | None:
    """What else ``import name`` means, in this process or a new one."""
    importlib.invalidate_caches()
    specs = (finder.find_spec(name, None) for finder in sys.meta_path)
    found = next((spec.origin or "a package" for spec in specs if spec is not None), "nothing that can be imported")
    if found != str(path) and not (Path(found).exists() and Path(found).samefile(path)):
        return found
    here = sys.modules.get(name)
    ours = [module for _, module in _loaded.values()]
    if here is None or here in ours or getattr(here, "__file__", None) == str(path):
        return None
    return f"a module of this process, {here!r}"


def _told(path: Path, error: BaseException) -> str:
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}, line {error.lineno}: {error.msg}"
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
    where = f", line {lines[-1]}" if lines else ""
    return f"{path}{where}: {type(error).__name__}: {error}"
