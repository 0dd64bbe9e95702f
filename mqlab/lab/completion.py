"""What can follow on a ``%mqlab`` line, read from the same tree that parses it."""

from __future__ import annotations

import argparse
from collections.abc import Iterable

from mqlab.arguments import Parser, build_parser
from mqlab.lab.registry import SESSIONS
from mqlab.models.fetch import KNOWN
from mqlab.wire.registry import Registry


def complete(line: str) -> list[str]:
    """Candidates for the last word of a line, which may be empty; they begin with it.

    Args:
        line: from the command on, up to the cursor: ``"serve smollm2-135m --topo"``.
    """
    *words, last = line.split(" ")
    parser, rest = _descend(build_parser("mqlab", notebook=True), [word for word in words if word])
    return sorted(candidate for candidate in set(_candidates(parser, rest, last)) if candidate.startswith(last))


def _descend(parser: argparse.ArgumentParser, words: list[str]) -> tuple[argparse.ArgumentParser, list[str]]:
    """The parser of the innermost command that is named, and the words behind that name."""
    for place, word in enumerate(words):
        children = _children(parser)
        if word in children:
            return _descend(children[word], words[place + 1 :])
    return parser, words


def _children(parser: argparse.ArgumentParser) -> dict[str, Parser]:
    actions = (action for action in parser._actions if isinstance(action, argparse._SubParsersAction))
    return {name: child for action in actions for name, child in action.choices.items()}


def _candidates(parser: argparse.ArgumentParser, rest: list[str], last: str) -> Iterable[str]:
    if children := _children(parser):
        return [*children, *(_targets() if parser.prog.endswith("bench") else ())]
    before = next((action for action in parser._actions if rest and rest[-1] in action.option_strings), None)
    if before is not None and before.nargs != 0:
        return [str(choice) for choice in before.choices or ()]
    if last.startswith("-"):
        return [option for action in parser._actions for option in action.option_strings]
    positional = next((action.dest for action in parser._actions if not action.option_strings), None)
    return {"model": list(KNOWN), "name": list(KNOWN), "target": _targets()}.get(positional or "", [])


def _targets() -> list[str]:
    return [*SESSIONS.live(), *(str(entry.pid) for entry in Registry().entries())]
