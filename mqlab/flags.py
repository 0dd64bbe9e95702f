"""Flags made from config classes, and the parser that reads them.

Nothing here ends the process: a wrong argument is a ConfigError with a short usage, ``--help`` and ``--version`` raise HelpShown
when they have printed.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import Field, fields
from types import NoneType, UnionType
from typing import Any, NoReturn, TypeVar, Union, get_args, get_origin, get_type_hints

from mqlab.errors import ConfigError
from mqlab.helptext import Formatter, about, children_of, everything, short
from mqlab.spelling import Foreign, suggestion

T = TypeVar("T")

_UNITS = {"k": 10**3, "m": 10**6, "g": 10**9, "K": 2**10, "M": 2**20, "G": 2**30}


class HelpShown(Exception):
    """``--help`` or ``--version`` has printed; there is nothing more to do."""


class Parser(argparse.ArgumentParser):
    """An ArgumentParser that raises where argparse would exit, takes no abbreviations, suggests what may have been meant, and explains
    itself in depths.

    Attributes:
        rare: options that the short help leaves out, by their ``dest``.
        foreign: flags that another program has, and what becomes of them here.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        kwargs.setdefault("formatter_class", Formatter)
        super().__init__(*args, allow_abbrev=False, add_help=False, **kwargs)
        self.rare: set[str] = set()
        self.foreign: Mapping[str, Foreign] = {}
        self.add_argument("-h", "--help", action=_Help, help="this; --help=all for all options, --help=WORD for those about a word")

    def parse(self, argv: Sequence[str]) -> argparse.Namespace:
        """The arguments by name.

        Raises:
            ConfigError: an argument is wrong; the message ends with a short usage. HelpShown: help was asked for and printed.
        """
        return self.parse_args(argv)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> tuple[Any, list[str]]:  # pyright: ignore[reportIncompatibleMethodOverride]
        """See argparse; here the command itself refuses what it does not know, so that its own usage is shown."""
        if args is not None and not children_of(self):
            args = self._own(args)
        namespace, unknown = super().parse_known_args(args, namespace)
        if unknown:
            self.error(f"unknown arguments: {' '.join(unknown)}")
        return namespace, unknown

    def has(self, dest: str) -> bool:
        """Whether an argument of that name is there already."""
        return any(action.dest == dest for action in self._actions)

    def format_help(self) -> str:
        """See argparse; the usual options."""
        return short(self, self.rare)

    def error(self, message: str) -> NoReturn:
        """See argparse; raises ConfigError."""
        message = message.replace("ignored explicit argument", "takes no value, and got")
        raise ConfigError(f"{message}\n{self.format_usage().strip()}\n'{self.prog} --help' explains")

    def exit(self, status: int = 0, message: str | None = None) -> NoReturn:
        """See argparse; raises HelpShown."""
        raise HelpShown(message or "")

    def _own(self, args: Sequence[str]) -> list[str]:
        """The arguments in this command's spelling, without what other programs' flags ask for and is so here anyway."""
        own: list[str] = []
        rest = list(args)
        while rest and rest[0] != "--":
            given = rest.pop(0)
            name, equals, value = given.partition("=")
            name = name.replace("_", "-") if name.startswith("--") else name
            if not self._is_foreign(given, name):
                own.append(name + equals + value)
            elif (taken := value if equals else self.foreign[name].take_value(rest)) not in self.foreign[name].fine:
                self.error(f"{name}{taken and f'={taken}'} is not possible: {self.foreign[name].why}")
        return own + rest

    def _is_foreign(self, given: str, name: str) -> bool:
        """Whether it is a flag of another program; one that nobody knows is refused."""
        known = name in self._option_string_actions
        if name.startswith("--") and not known and name not in self.foreign:
            self.error(f"unknown arguments: {given}{suggestion(name, self._option_string_actions)}")
        return name in self.foreign and not known

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        """argparse's, with a suggestion."""
        try:
            super()._check_value(action, value)
        except argparse.ArgumentError as error:
            error.message += suggestion(str(value), map(str, action.choices or ()))
            raise


class _Help(argparse.Action):
    """``--help``, ``--help=all``, ``--help=WORD``."""

    def __init__(self, option_strings: Sequence[str], dest: str, help: str) -> None:
        del dest
        super().__init__(option_strings, argparse.SUPPRESS, nargs="?", metavar="WORD", default=argparse.SUPPRESS, help=help)

    def __call__(self, parser: argparse.ArgumentParser, namespace: object, word: Any, option_string: str | None = None) -> NoReturn:
        del namespace, option_string
        shown = parser.format_help() if word is None else everything(parser) if word == "all" else about(parser, word)
        if not shown:
            parser.error(f"no option and no group is about {word!r}; --help=all shows all of them")
        print(shown, end="")
        parser.exit()


def add_config(parser: Parser, config: type, *, positional: Sequence[str] = (), **extra: dict[str, Any]) -> None:
    """One flag per field of a config class, with the help, choices and metavar of its metadata.

    Args:
        config: a dataclass whose fields were made with ``mqlab.config.option``.
        positional: fields that are given without a flag, and must be.
        extra: more metadata by field, for what the class itself cannot know.

    A flag that another config of the same command has already is shared: both read it. Where some fields of the class are marked
    ``usual``, the short help leaves the others out.
    """
    group = parser.add_argument_group(_title(config))
    hints = get_type_hints(config)
    some_usual = any(one.metadata.get("usual") for one in fields(config))
    for one in fields(config):
        metadata = {**one.metadata, **extra.get(one.name, {})}
        if "section" in metadata:
            group = parser.add_argument_group(metadata["section"])
        if one.name in positional:
            group.add_argument(one.name, metavar=one.name.upper(), help=_escape(metadata["help"]))
        elif not parser.has(one.name):
            names = (_flag(one.name), *metadata.get("aliases", ()))
            group.add_argument(*names, **_flag_arguments(one, hints[one.name], metadata))
            parser.rare |= {one.name} if some_usual and not metadata.get("usual") else set()
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
    values = {name: defaults[name] if value is None else value for name, value in given.items()}
    return config(**{name: tuple(value) if isinstance(value, list) else value for name, value in values.items()})


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
        return arguments | {"type": _item_parser(_item_type(hint)), "nargs": metadata["nargs"], "metavar": metadata["metavar"]}
    parse = number_or_inf if metadata.get("infinite") else _PARSERS[kind]
    return arguments | {"type": parse, "metavar": metadata.get("metavar", _METAVARS[kind])}


def _plain_type(hint: Any) -> type:
    """``int`` for ``int | None``; ``str`` for a Literal."""
    if get_origin(hint) in (UnionType, Union):
        (hint,) = (arm for arm in get_args(hint) if arm is not NoneType)
    return hint if isinstance(hint, type) else str


def _item_type(hint: Any) -> type:
    """``int`` for ``tuple[int, ...]``; ``str`` for what is no tuple of one type."""
    arms = get_args(hint)
    return arms[0] if get_origin(hint) is tuple and arms[0] in _PARSERS else str


def _item_parser(kind: type) -> Callable[[str], Any]:
    """For an option of several values."""
    parse = _PARSERS[kind]

    def item(text: str) -> Any:
        if kind is not str and "," in text:
            raise argparse.ArgumentTypeError(f"{text!r} must be given with spaces, like 1 2 4, and without brackets")
        return parse(text)

    return item


def _help(one: Field[Any], metadata: dict[str, Any]) -> str:
    shown = one.default is not None and one.default is not False and one.default != ()
    return _escape(metadata["help"]) + (" (default: %(default)s)" if shown else "")


def _title(config: type) -> str:
    return (config.__doc__ or config.__name__).partition("\n")[0].partition(". ")[0].rstrip(".")


def as_arguments(config: Any, one: Field[Any]) -> list[str]:
    """A setting as the arguments that give it; none where it is the default, or a secret, which everybody sees on a command line."""
    value = getattr(config, one.name)
    if value == one.default or not one.repr:
        return []
    if isinstance(value, bool):
        return [_flag(one.name) if value else "--no-" + one.name.replace("_", "-")]
    return [_flag(one.name), *map(str, value)] if isinstance(value, tuple) else [f"{_flag(one.name)}={value}"]


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def _escape(text: str) -> str:
    return text.replace("%", "%%")
