"""Flags made from config classes, and the parser that reads them.

Nothing here ends the process: a wrong argument is a ConfigError with a short usage, ``--help`` and ``--version`` raise HelpShown
when they have printed.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Sequence
from dataclasses import Field, fields
from types import NoneType, UnionType
from typing import Any, NoReturn, TypeVar, Union, get_args, get_origin, get_type_hints

from mqlab.errors import ConfigError

T = TypeVar("T")

_UNITS = {"k": 10**3, "m": 10**6, "g": 10**9, "K": 2**10, "M": 2**20, "G": 2**30}


class HelpShown(Exception):
    """``--help`` or ``--version`` has printed; there is nothing more to do."""


class Parser(argparse.ArgumentParser):
    """An ArgumentParser that raises where argparse would exit, and takes no abbreviations."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        kwargs.setdefault("formatter_class", argparse.RawDescriptionHelpFormatter)
        super().__init__(*args, allow_abbrev=False, **kwargs)

    def parse(self, argv: Sequence[str]) -> argparse.Namespace:
        """The arguments by name.

        Raises:
            ConfigError: an argument is wrong; the message ends with a short usage. HelpShown: help was asked for and printed.
        """
        return self.parse_args(argv)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> tuple[Any, list[str]]:  # pyright: ignore[reportIncompatibleMethodOverride]
        """See argparse; here the command itself refuses what it does not know, so that its own usage is shown."""
        namespace, unknown = super().parse_known_args(args, namespace)
        if unknown:
            self.error(f"unknown arguments: {' '.join(unknown)}")
        return namespace, unknown

    def has(self, dest: str) -> bool:
        """Whether an argument of that name is there already."""
        return any(action.dest == dest for action in self._actions)

    def error(self, message: str) -> NoReturn:
        """See argparse; raises ConfigError."""
        raise ConfigError(f"{message}\n{self.format_usage().strip()}\n'{self.prog} --help' explains")

    def exit(self, status: int = 0, message: str | None = None) -> NoReturn:
        """See argparse; raises HelpShown."""
        raise HelpShown(message or "")


def add_config(parser: Parser, config: type, *, positional: Sequence[str] = (), **extra: dict[str, Any]) -> None:
    """One flag per field of a config class, with the help, choices and metavar of its metadata.

    Args:
        config: a dataclass whose fields were made with ``mqlab.config.option``.
        positional: fields that are given without a flag, and must be.
        extra: more metadata by field, for what the class itself cannot know.

    A flag that another config of the same command has already is shared: both read it.
    """
    group = parser.add_argument_group(_title(config))
    hints = get_type_hints(config)
    for one in fields(config):
        metadata = {**one.metadata, **extra.get(one.name, {})}
        if "section" in metadata:
            group = parser.add_argument_group(metadata["section"])
        if one.name in positional:
            group.add_argument(one.name, metavar=one.name.upper(), help=_escape(metadata["help"]))
        elif not parser.has(one.name):
            names = (_flag(one.name), *metadata.get("aliases", ()))
            group.add_argument(*names, **_flag_arguments(one, hints[one.name], metadata))
        if one.name == "log_stats_interval":
            group.add_argument("--disable-log-stats", dest=one.name, action="store_const", const=0.0, help="same as --log-stats-interval 0")


def read_config(namespace: argparse.Namespace, config: type[T]) -> T:
    """The config that the arguments describe.

    Raises:
        ConfigError: a value is out of its range.
    """
    given = {one.name: getattr(namespace, one.name) for one in fields(config) if hasattr(namespace, one.name)}  # type: ignore[arg-type]
    # A shared flag has one default, which may be the "not given" of the other config.
    defaults = {one.name: one.default for one in fields(config)}  # type: ignore[arg-type]
    return config(**{name: defaults[name] if value is None else value for name, value in given.items()})


def whole_number(text: str) -> int:
    """``12``, ``4k`` (4000), ``4K`` (4096), ``1.5k``; likewise m, M, g, G."""
    value = number(text)
    if not value.is_integer():
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number")
    return int(text) if text.lstrip("+-").isdigit() else int(value)


def number(text: str) -> float:
    """A finite number, with the units of ``whole_number``."""
    unit = _UNITS.get(text[-1:], 1)
    digits = text[:-1] if text[-1:] in _UNITS else text
    try:
        value = float(digits) * unit
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number; units are k, m, g (1000) and K, M, G (1024)") from None
    if not math.isfinite(value):
        raise argparse.ArgumentTypeError(f"{text!r} must be finite")
    return value


def number_or_inf(text: str) -> float:
    """As ``number``, or ``inf``."""
    return math.inf if text == "inf" else number(text)


_PARSERS: dict[type, Callable[[str], Any]] = {int: whole_number, float: number, str: str}
_METAVARS: dict[type, str] = {int: "N", float: "X", str: "NAME"}


def _flag_arguments(one: Field[Any], hint: Any, metadata: dict[str, Any]) -> dict[str, Any]:
    kind = _plain_type(hint)
    arguments: dict[str, Any] = {"dest": one.name, "default": one.default, "help": _help(one, metadata)}
    if kind is bool:
        return arguments | {"action": argparse.BooleanOptionalAction}
    if "choices" in metadata:
        return arguments | {"type": str, "choices": metadata["choices"]}
    if "nargs" in metadata:
        return arguments | {"nargs": metadata["nargs"], "metavar": metadata["metavar"]}
    parse = number_or_inf if metadata.get("infinite") else _PARSERS[kind]
    return arguments | {"type": parse, "metavar": metadata.get("metavar", _METAVARS[kind])}


def _plain_type(hint: Any) -> type:
    """``int`` for ``int | None``; ``str`` for a Literal."""
    if get_origin(hint) in (UnionType, Union):
        (hint,) = (arm for arm in get_args(hint) if arm is not NoneType)
    return hint if isinstance(hint, type) else str


def _help(one: Field[Any], metadata: dict[str, Any]) -> str:
    shown = one.default is not None and one.default is not False and one.default != ()
    return _escape(metadata["help"]) + (" (default: %(default)s)" if shown else "")


def _title(config: type) -> str:
    return (config.__doc__ or config.__name__).partition("\n")[0].partition(". ")[0].rstrip(".")


def as_flag(config: Any, one: Field[Any]) -> str:
    """A setting as the argument that gives it; empty where it is the default."""
    value = getattr(config, one.name)
    if value == one.default:
        return ""
    if isinstance(value, bool):
        return _flag(one.name) if value else "--no-" + one.name.replace("_", "-")
    return f"{_flag(one.name)}={value}"


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def _escape(text: str) -> str:
    return text.replace("%", "%%")
