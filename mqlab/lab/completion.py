"""What can follow on a ``%mqlab`` line, read from the same tree that parses it."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from pathlib import Path

from mqlab.arguments import build_parser
from mqlab.flags import Parser
from mqlab.lab.registry import SESSIONS
from mqlab.models.fetch import KNOWN
from mqlab.topologies import TOPOLOGIES
from mqlab.wire.registry import Registry

BENCHES = ("throughput", "latency", "sampler", "scheduler", "codecs", "frontend", "capacity", "calibration", "device", "serve", "seeds")
_FILES = ("PATH", "FILE", "FOLDER")


def complete(line: str) -> list[str]:
    """Candidates for the last word of a line, which may be empty; they begin with it.

    Args:
        line: from the command on, up to the cursor: ``"serve smollm2-135m --topo"``.
    """
    *before, last = line.split(" ")
    words = [word for word in before if word]
    if words[:1] == ["bench"] and len(words) > 1 and words[1] not in BENCHES:
        words[1:2] = ["serve", f"--session={words[1]}"]
    parser, rest = _descend(build_parser("mqlab", notebook=True), words)
    option, equals, value = last.partition("=")
    if equals and option.startswith("-"):
        return [f"{option}={found}" for found in _beginning(_values(_option(parser, option), value), value)]
    return _beginning(_candidates(parser, rest, last), last)


def _beginning(candidates: Iterable[str], start: str) -> list[str]:
    return sorted({candidate for candidate in candidates if candidate.startswith(start)})


def _descend(parser: argparse.ArgumentParser, words: Sequence[str]) -> tuple[argparse.ArgumentParser, Sequence[str]]:
    """The parser of the innermost command that is named, and the words behind that name."""
    while words and (child := _children(parser).get(words[0])) is not None:
        parser, words = child, words[1:]
    return parser, words


def _children(parser: argparse.ArgumentParser) -> dict[str, Parser]:
    actions = (action for action in parser._actions if isinstance(action, argparse._SubParsersAction))
    return {name: child for action in actions for name, child in action.choices.items()}


def _candidates(parser: argparse.ArgumentParser, rest: Sequence[str], last: str) -> Iterable[str]:
    if children := _children(parser):
        return [*children, *(_targets() if parser.prog.endswith("bench") else ())]
    wanted = _option(parser, rest[-1]) if rest else None
    if wanted is not None and wanted.nargs != 0:
        return _values(wanted, last)
    positional = next((action for action in parser._actions if not action.option_strings), None)
    if positional is None or last.startswith("-") or _is_given(parser, rest):
        return [option for action in parser._actions for option in action.option_strings]
    return _values(positional, last)


def _option(parser: argparse.ArgumentParser, name: str) -> argparse.Action | None:
    return next((action for action in parser._actions if name in action.option_strings), None)


def _is_given(parser: argparse.ArgumentParser, rest: Sequence[str]) -> bool:
    """Whether one of the words is neither an option nor the value of one."""
    before = [None, *(_option(parser, word) for word in rest)]
    return any(not word.startswith("-") and (one is None or one.nargs == 0) for one, word in zip(before, rest, strict=False))


def _values(action: argparse.Action | None, start: str) -> Iterable[str]:
    if action is None:
        return []
    paths = _paths(start) if action.metavar in _FILES or (action.dest in ("model", "target", "topology") and "/" in start) else []
    if action.choices:
        return [*map(str, action.choices), *paths]
    sessions = [*SESSIONS.live()]
    known = {"model": KNOWN, "name": KNOWN, "session": sessions, "target": _targets(), "topology": TOPOLOGIES}.get(action.dest, [])
    return [*known, *paths]


def _targets() -> list[str]:
    return [*SESSIONS.live(), *(str(entry.pid) for entry in Registry().entries())]


def _paths(start: str) -> list[str]:
    """What lies in the folder that is being typed; a folder ends with a slash."""
    head, slash, _ = start.rpartition("/")
    folder = Path(head + slash or ".").expanduser()
    found = sorted(folder.iterdir()) if folder.is_dir() else []
    return [head + slash + path.name + ("/" if path.is_dir() else "") for path in found]
