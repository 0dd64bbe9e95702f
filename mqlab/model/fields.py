"""Fields of config.json, checked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mqlab.errors import ModelError


def count(config: Mapping[str, Any], field: str, default: int | None = None, least: int = 1) -> int:
    """A whole number of at least ``least``; ``default`` where it is missing or null.

    Raises:
        ModelError: it is something else.
    """
    value = config.get(field)
    value = default if value is None else value
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ModelError(
            f"config.json has {field}={value!r}, which must be a whole number, {least} or more; download or save the model again"
        )
    return value


def number(config: Mapping[str, Any], field: str, default: float | None = None) -> float:
    """A number above 0; ``default`` where it is missing or null.

    Raises:
        ModelError: it is something else.
    """
    value = config.get(field)
    value = default if value is None else value
    if not isinstance(value, int | float) or isinstance(value, bool) or not value > 0:
        raise ModelError(f"config.json has {field}={value!r}, which must be a number above 0; download or save the model again")
    return float(value)
