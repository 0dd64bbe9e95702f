"""Where the timing facts of a device are: a file that ships with the package, one in mqlab's cache, or one of the user's own."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

from mqlab.config import Settings
from mqlab.errors import ModelError

MEASURED = "measured"
"""A file of measurements beside those of the devices, which is no device."""

_PACKAGE = Path(__file__).resolve().parents[1]
_IN_WHEEL = _PACKAGE / "_devices"


def shipped_devices() -> Path:
    """The folder of files that come with the package: inside it when it was installed from a wheel, else in the repository."""
    return _IN_WHEEL if _IN_WHEEL.is_dir() else _PACKAGE.parent / "profiles" / "devices"


def own_devices() -> Path:
    """The folder of mqlab's cache in which calibrated devices are found by name."""
    return Settings.read().cache_dir / "devices"


def device_names() -> tuple[str, ...]:
    """Every device that is known by name, in order."""
    return tuple(sorted({path.stem for folder in (shipped_devices(), own_devices()) for path in folder.glob("*.toml")} - {MEASURED}))


def device_file(name: str) -> Path:
    """The file of a device: a .toml file by its path, or by its name or an alias; one's own come before those that were shipped.

    Raises:
        ModelError: there is none; the message lists those that there are.
    """
    if name.endswith(".toml"):
        path = Path(name).expanduser()
        if not path.is_file():
            raise ModelError(f"no device file at {name!r}; pass one that `mqlab calibrate` wrote, or one of {_listed()}")
        return path
    if name in device_names():
        own = own_devices() / f"{name}.toml"
        return own if own.is_file() else shipped_devices() / own.name
    for path in sorted(shipped_devices().glob("*.toml")):
        if name in read_toml(path).get("aliases", ()):
            return path
    raise ModelError(f"no device is known as {name!r}; pass one of {_listed()}, or the path of a .toml file")


def read_toml(path: Path) -> dict[str, Any]:
    """What a TOML file holds.

    Raises:
        ModelError: it cannot be read.
    """
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ModelError(f"{path} cannot be read as TOML: {error}; write it again with `mqlab calibrate`, or correct it") from error


def _listed() -> str:
    return ", ".join(device_names())
