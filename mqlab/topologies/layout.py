"""Finding a layout, this package's by name, a user's by its file: a module with one client class, and ``Options`` and ``PRESETS``."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Mapping
from dataclasses import dataclass, is_dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from mqlab.client.base import BaseClient
from mqlab.errors import ConfigError
from mqlab.topologies.userfile import is_file, load_file, read_layout
from mqlab.wire.wiring import Wiring

TOPOLOGIES = ("inproc", "aio", "thread", "mq", "v1", "rpc", "rpc_proxy", "detok_chain", "detok_ring")
"""Names of this package's own layouts, each a module of it."""

_GUIDE = "docs/adding-a-topology.md shows how"


@dataclass(frozen=True)
class NoOptions:
    """Of a layout that has nothing to choose."""


@dataclass(frozen=True)
class Layout:
    """What a layout's module holds.

    Attributes:
        module: may have ``Options``, a frozen dataclass whose fields all have defaults, and ``PRESETS``, some of them by name.
        client: its client, called with a wiring and, where the module has them, Options.
    """

    module: ModuleType
    client: Any

    @property
    def own_process(self) -> bool:
        """Whether its engine is a process of its own."""
        return self.client.own_process

    @property
    def presets(self) -> Mapping[str, Any]:
        """Options by name; ``historical`` and ``best`` are always there."""
        plain = getattr(self.module, "Options", NoOptions)()
        return {"historical": plain, "best": plain, **getattr(self.module, "PRESETS", {})}

    def make(self, wiring: Wiring, options: Any, **extra: Any) -> BaseClient:
        """Its client, not started yet."""
        return self.client(wiring, *self._arguments(options), **extra)

    def _arguments(self, options: Any) -> tuple[Any, ...]:
        return (options,) if hasattr(self.module, "Options") else ()

    def check(self) -> None:
        """Refuse what a user's file may have forgotten.

        Raises:
            ConfigError
        """
        name = f"{self.client.__name__} of {self.module.__file__}"
        if missing := sorted(self.client.__abstractmethods__):
            raise ConfigError(f"{name} lacks {', '.join(missing)}; {_GUIDE}")
        if not hasattr(self.client, "shape"):
            raise ConfigError(f"{name} lacks `shape`, the picture of its processes and channels; {_GUIDE}")
        self._check_options()
        extra = {"log_to_terminal": False} if self.own_process else {}
        try:
            inspect.signature(self.client).bind(None, *self._arguments(None), **extra)
        except TypeError as error:
            given = ["wiring", *["options" for _ in self._arguments(None)], *(f"{key}=…" for key in extra)]
            raise ConfigError(f"{name} is made with ({', '.join(given)}), which its __init__ does not take: {error}; {_GUIDE}") from None

    def _check_options(self) -> None:
        where = self.module.__file__
        if not isinstance(getattr(self.module, "PRESETS", {}), Mapping):
            raise ConfigError(f"PRESETS of {where} must be Options by name; {_GUIDE}")
        try:
            presets = self.presets
        except TypeError as error:
            raise ConfigError(f"Options() of {where} fails: {error}; give each field a default") from None
        if not all(is_dataclass(options) for options in presets.values()):
            raise ConfigError(f"Options of {where} must be a dataclass, and PRESETS such Options by name; {_GUIDE}")


def find_layout(topology: str) -> Layout:
    """A layout by name, or by the path of a file that ends with ``.py``.

    A file is imported under its own name, again whenever its text has changed.

    Raises:
        ConfigError: unknown; or the file cannot be imported, or holds no layout.
    """
    if is_file(topology):
        layout = _only_layout(load_file(topology))
        layout.check()
        return layout
    name = topology.replace("-", "_")
    if name not in TOPOLOGIES:
        raise ConfigError(f"--topology={topology!r} is unknown; choose one of {', '.join(TOPOLOGIES)}, or a .py file of your own")
    return _only_layout(importlib.import_module(f"mqlab.topologies.{name}"))


def layout_label(topology: str) -> str:
    """A topology as tables and pictures name it: a file by its name alone."""
    return Path(topology).stem if is_file(topology) else topology


def layout_digest(topology: str) -> str:
    """What tells the present text of a user's file from an earlier one; empty for layouts that come with the package.

    Raises:
        ConfigError: there is no such file.
    """
    return read_layout(topology)[1] if is_file(topology) else ""


def _only_layout(module: ModuleType) -> Layout:
    clients = [one for one in vars(module).values() if _is_client(one) and one.__module__ == module.__name__]
    if len(clients) != 1:
        names = ", ".join(one.__name__ for one in clients) or "none"
        wanted = "one subclass of RemoteClient, or of LocalClient where the engine shares the process"
        raise ConfigError(f"{module.__file__} must define {wanted}; it defines {names}; {_GUIDE}")
    return Layout(module, clients[0])


def _is_client(value: Any) -> bool:
    return isinstance(value, type) and issubclass(value, BaseClient)
