"""The layouts of processes, threads, sockets and loops between client and core; one file each."""

from __future__ import annotations

import importlib
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
    if name not in TOPOLOGIES:
        raise ConfigError(f"--topology={topology!r} is unknown; choose one of {', '.join(TOPOLOGIES)}")
    module = importlib.import_module(f"mqlab.topologies.{name}")
    if preset not in module.PRESETS:
        raise ConfigError(f"--preset={preset!r} is unknown; choose one of {', '.join(module.PRESETS)}")
    try:
        chosen = module.Options(**{**vars(module.PRESETS[preset]), **options})
    except TypeError as error:
        raise ConfigError(
            f"topology {topology!r} does not take these options: {sorted(options)}; it has {list(vars(module.Options()))}"
        ) from error
    check_types(chosen)
    extra = {"log_to_terminal": log_to_terminal} if name in OWN_PROCESS else {}
    return getattr(module, TOPOLOGIES[name])(wiring, chosen, **extra)
