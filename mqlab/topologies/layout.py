"""Finding a layout by name: a module with ``Options``, ``PRESETS`` and one client class."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from mqlab.client.base import BaseClient
from mqlab.errors import ConfigError

TOPOLOGIES = ("inproc", "aio", "mq", "v1")
"""Names of this package's own layouts, each a module of it."""


@dataclass(frozen=True)
class Layout:
    """What a layout's module holds.

    Attributes:
        module: with ``Options`` and ``PRESETS``.
        client: its client, called with a wiring and Options.
    """

    module: ModuleType
    client: Any

    @property
    def own_process(self) -> bool:
        """Whether its engine is a process of its own."""
        return self.client.own_process


def find_layout(topology: str) -> Layout:
    """A layout by name.

    Raises:
        ConfigError: unknown.
    """
    name = topology.replace("-", "_")
    if name not in TOPOLOGIES:
        raise ConfigError(f"--topology={topology!r} is unknown; choose one of {', '.join(TOPOLOGIES)}")
    module = importlib.import_module(f"mqlab.topologies.{name}")
    return Layout(module, _client_of(module))


def _client_of(module: ModuleType) -> type[BaseClient]:
    (client,) = (one for one in vars(module).values() if _is_client(one) and one.__module__ == module.__name__)
    return client


def _is_client(value: Any) -> bool:
    return isinstance(value, type) and issubclass(value, BaseClient)
