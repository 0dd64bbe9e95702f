"""The layouts of processes, threads, sockets and loops between client and core; one file each."""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import Any

from mqlab.client.base import BaseClient
from mqlab.config import check_types
from mqlab.errors import ConfigError
from mqlab.wire.wiring import Wiring

TOPOLOGIES = {
    "inproc": "InprocClient",
    "aio": "AioClient",
    "mq": "MqClient",
    "v1": "V1Client",
}

OWN_PROCESS = frozenset({"mq", "v1"})
"""Layouts whose engine is a process of its own."""


def make_client(topology: str, wiring: Wiring, *, preset: str = "best", log_to_terminal: bool = False, **options: Any) -> BaseClient:
    """A client that is not started yet.

    Args:
        topology: one of TOPOLOGIES.
        wiring: cores, codec, intervals.
        preset: ``best``, or ``historical``: as the system that the layout reproduces had it.
        log_to_terminal: an engine process of its own writes its log to this process's terminal, not to a file.
        options: fields of the layout's Options that differ from the preset.

    Raises:
        ConfigError: unknown topology, preset or option.
    """
    name = topology.replace("-", "_")
    chosen = layout_options(name, preset, **options)
    extra = {"log_to_terminal": log_to_terminal} if name in OWN_PROCESS else {}
    return wiring.wrap_client(getattr(_module(name), TOPOLOGIES[name])(wiring, chosen, **extra))


def layout_options(topology: str, preset: str = "best", **options: Any) -> Any:
    """A layout's Options: the preset with what differs from it.

    Raises:
        ConfigError: unknown topology, preset or option, or a value that the option does not take.
    """
    module = _module(topology.replace("-", "_"))
    if preset not in module.PRESETS:
        raise ConfigError(f"--preset={preset!r} is unknown; choose one of {', '.join(module.PRESETS)}")
    known = vars(module.PRESETS[preset])
    if unknown := sorted(options.keys() - known.keys()):
        raise ConfigError(f"topology {topology!r} does not take these options: {unknown}; it has {list(known)}")
    chosen = module.Options(**{**known, **options})
    check_types(chosen)
    return chosen


def _module(name: str) -> ModuleType:
    if name not in TOPOLOGIES:
        raise ConfigError(f"--topology={name!r} is unknown; choose one of {', '.join(TOPOLOGIES)}")
    return importlib.import_module(f"mqlab.topologies.{name}")
