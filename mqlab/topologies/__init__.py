"""The layouts of processes, threads, sockets and loops between client and core; one file each."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from mqlab.client.base import BaseClient
from mqlab.config import check_types
from mqlab.errors import ConfigError
from mqlab.topologies.layout import TOPOLOGIES, Layout, find_layout, layout_digest, layout_label
from mqlab.wire.wiring import Wiring

__all__ = ["TOPOLOGIES", "Layout", "find_layout", "layout_digest", "layout_label", "layout_options", "make_client"]


def make_client(topology: str, wiring: Wiring, *, preset: str = "best", log_to_terminal: bool = False, **options: Any) -> BaseClient:
    """A client that is not started yet.

    Args:
        topology: one of TOPOLOGIES, or a .py file that holds a layout.
        wiring: cores, codec, intervals.
        preset: ``best``, or ``historical``: as the system that the layout reproduces had it.
        log_to_terminal: an engine process of its own writes its log to this process's terminal, not to a file.
        options: fields of the layout's Options that differ from the preset.

    Raises:
        ConfigError: unknown topology, preset or option; a file that holds no layout.
    """
    layout = find_layout(topology)
    chosen = layout_options(topology, preset, **options)
    extra = {"log_to_terminal": log_to_terminal} if layout.own_process else {}
    return wiring.wrap_client(layout.make(wiring, chosen, **extra))


def layout_options(topology: str, preset: str = "best", **options: Any) -> Any:
    """A layout's Options: the preset with what differs from it.

    Raises:
        ConfigError: unknown topology, preset or option, or a value that the option does not take.
    """
    presets = find_layout(topology).presets
    if preset not in presets:
        raise ConfigError(f"--preset={preset!r} is unknown; choose one of {', '.join(presets)}")
    known = vars(presets[preset])
    if unknown := sorted(options.keys() - known.keys()):
        raise ConfigError(f"topology {topology!r} does not take these options: {unknown}; it has {list(known)}")
    chosen = replace(presets[preset], **options)
    check_types(chosen)
    return chosen
