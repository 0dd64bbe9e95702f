"""What every light probe keeps to: when it fails it is dropped, and what it looks at goes on."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")

logger = logging.getLogger("mqlab.probes")


class _Nothing:
    def __getattr__(self, name: str) -> Callable[..., None]:
        return _ignore


NOTHING: Any = _Nothing()
"""Stands where a probe was: takes every call, and does nothing."""


def dropped(name: str, error: Exception) -> Any:
    """Say that a probe failed; returns what takes its place."""
    logger.warning("the probe %s is dropped: %s: %s", name, type(error).__name__, error)
    return NOTHING


def attempt(name: str, make: Callable[[], T], otherwise: T) -> T:
    """What ``make`` gives; where it fails the probe is dropped, and the thing without it is what is used."""
    try:
        return make()
    except Exception as error:
        dropped(name, error)
        return otherwise


def _ignore(*args: Any, **kwargs: Any) -> None:
    """Do nothing."""
