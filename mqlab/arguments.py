"""The argument tree that the command line and the notebook's magics share, generated from the config classes.

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

from mqlab.bench.options import ThroughputConfig
from mqlab.config import EngineConfig, ServerConfig, Timing
from mqlab.errors import ConfigError
from mqlab.topologies import TOPOLOGIES

T = TypeVar("T")
Commands = argparse._SubParsersAction  # the type of what add_subparsers returns; argparse gives it no public name

_UNITS = {"k": 10**3, "m": 10**6, "g": 10**9, "K": 2**10, "M": 2**20, "G": 2**30}
_TOPOLOGY = {"choices": tuple(name.replace("_", "-") for name in TOPOLOGIES)}


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

    def error(self, message: str) -> NoReturn:
        """See argparse; raises ConfigError."""
        raise ConfigError(f"{message}\n{self.format_usage().strip()}\n'{self.prog} --help' explains")

    def exit(self, status: int = 0, message: str | None = None) -> NoReturn:
        """See argparse; raises HelpShown."""
        raise HelpShown(message or "")


class _Version(argparse.Action):
    """``--version``, looked up only when asked for."""

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        from importlib.metadata import version

        print(f"mqlab {version('mqlab')}")
        parser.exit()


def build_parser(prog: str = "mqlab") -> Parser:
    """The whole tree: serve, fetch, bench throughput. ``namespace.command`` and ``namespace.bench`` say what was asked for."""
    parser = Parser(prog=prog, description="A research workbench for LLM serving engines.", usage="%(prog)s COMMAND [options]")
    parser.add_argument("--version", action=_Version, nargs=0, help="print the version")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True, prog=prog)
    add_serve(commands)
    add_fetch(commands)
    add_bench(commands)
    return parser


def add_serve(commands: Commands) -> Parser:
    """``serve MODEL``: read its namespace with ``serve_configs``."""
    parser = _add_command(commands, "serve", "MODEL [options]", "Start an engine and an OpenAI-compatible server.")
    add_config(parser, EngineConfig, positional=("model",))
    add_config(parser, ServerConfig, topology=_TOPOLOGY)
    add_config(parser, Timing)
    return parser


def add_fetch(commands: Commands) -> Parser:
    """``fetch NAME``: ``namespace.name``."""
    parser = _add_command(commands, "fetch", "NAME", "Fetch a model and convert it, once.")
    parser.add_argument("name", metavar="NAME", help="a known name, for example smollm2-135m")
    return parser


def add_bench(commands: Commands) -> Parser:
    """``bench throughput``: read its namespace with ``throughput_configs``."""
    bench = _add_command(commands, "bench", "BENCHMARK [options]", "Measure an engine.")
    benches = bench.add_subparsers(dest="bench", metavar="BENCHMARK", required=True, prog=bench.prog)
    parser = _add_command(benches, "throughput", "[options]", "Tokens per second of an engine that has all its requests at once.")
    add_config(parser, ThroughputConfig, topology=_TOPOLOGY)
    add_config(parser, EngineConfig)
    add_config(parser, Timing)
    return parser


def serve_configs(namespace: argparse.Namespace) -> tuple[EngineConfig, ServerConfig, Timing]:
    """The configs of a ``serve`` command.

    Raises:
        ConfigError: a value is out of its range.
    """
    return read_config(namespace, EngineConfig), read_config(namespace, ServerConfig), read_config(namespace, Timing)


def throughput_configs(namespace: argparse.Namespace) -> tuple[EngineConfig, ThroughputConfig, Timing]:
    """The configs of a ``bench throughput`` command.

    Raises:
        ConfigError: a value is out of its range.
    """
    return read_config(namespace, EngineConfig), read_config(namespace, ThroughputConfig), read_config(namespace, Timing)


def add_config(parser: argparse.ArgumentParser, config: type, *, positional: Sequence[str] = (), **extra: dict[str, Any]) -> None:
    """One flag per field of a config class, with the help, choices and metavar of its metadata.

    Args:
        config: a dataclass whose fields were made with ``mqlab.config.option``.
        positional: fields that are given without a flag, and must be.
        extra: more metadata by field, for what the class itself cannot know.
    """
    group = parser.add_argument_group(_title(config))
    hints = get_type_hints(config)
    for one in fields(config):
        metadata = {**one.metadata, **extra.get(one.name, {})}
        if one.name in positional:
            group.add_argument(one.name, metavar=one.name.upper(), help=_escape(metadata["help"]))
        else:
            group.add_argument(_flag(one.name), **_flag_arguments(one, hints[one.name], metadata))
        if one.name == "log_stats_interval":
            group.add_argument("--disable-log-stats", dest=one.name, action="store_const", const=0.0, help="same as --log-stats-interval 0")


def read_config(namespace: argparse.Namespace, config: type[T]) -> T:
    """The config that the arguments describe.

    Raises:
        ConfigError: a value is out of its range.
    """
    names = [one.name for one in fields(config)]  # type: ignore[arg-type]
    return config(**{name: getattr(namespace, name) for name in names if hasattr(namespace, name)})


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


_PARSERS: dict[type, Callable[[str], Any]] = {int: whole_number, float: number, str: str}
_METAVARS: dict[type, str] = {int: "N", float: "X", str: "NAME"}


def _add_command(commands: Commands, name: str, usage: str, description: str) -> Parser:
    return commands.add_parser(name, help=description, description=description, usage=f"%(prog)s {usage}")


def _flag_arguments(one: Field[Any], hint: Any, metadata: dict[str, Any]) -> dict[str, Any]:
    kind = _plain_type(hint)
    arguments: dict[str, Any] = {"default": one.default, "help": _help(one, metadata)}
    if kind is bool:
        return arguments | {"action": argparse.BooleanOptionalAction}
    if "choices" in metadata:
        return arguments | {"type": str, "choices": metadata["choices"]}
    return arguments | {"type": _PARSERS[kind], "metavar": metadata.get("metavar", _METAVARS[kind])}


def _plain_type(hint: Any) -> type:
    """``int`` for ``int | None``; ``str`` for a Literal."""
    if get_origin(hint) in (UnionType, Union):
        (hint,) = (arm for arm in get_args(hint) if arm is not NoneType)
    return hint if isinstance(hint, type) else str


def _help(one: Field[Any], metadata: dict[str, Any]) -> str:
    shown = one.default is not None and one.default is not False
    return _escape(metadata["help"]) + (" (default: %(default)s)" if shown else "")


def _title(config: type) -> str:
    return (config.__doc__ or config.__name__).partition("\n")[0].partition(". ")[0].rstrip(".")


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def _escape(text: str) -> str:
    return text.replace("%", "%%")
