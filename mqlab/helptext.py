"""``--help`` in three depths: the usual options, all of them, or what a word is about."""

from __future__ import annotations

import argparse
import re
import shutil
import textwrap
from collections.abc import Callable, Collection, Iterator, Sequence

WIDEST = 120
"""Columns of help at most, on a wider terminal too: longer lines are hard to read."""

Groups = list[tuple[str, list[argparse.Action]]]


class Formatter(argparse.RawDescriptionHelpFormatter):
    """As wide as the terminal is, up to WIDEST."""

    def __init__(self, prog: str, **options: object) -> None:
        width = min(shutil.get_terminal_size().columns, WIDEST) - 2
        super().__init__(prog, **{"max_help_position": 32, "width": width, **options})  # type: ignore[arg-type]

    def _split_lines(self, text: str, width: int) -> list[str]:
        """argparse's, with flags kept in one piece."""
        return textwrap.wrap(" ".join(text.split()), width, break_on_hyphens=False)


def short(parser: argparse.ArgumentParser, rare: Collection[str]) -> str:
    """What most users need; where that is not all, how to see the rest.

    Args:
        rare: options to leave out, by their ``dest``.
    """
    groups = _groups(parser)
    hidden = sum(action.dest in rare for _, actions in groups for action in actions)
    shown = _only(groups, lambda action: action.dest not in rare)
    return _page(parser, shown, _more(parser, hidden, [title for title, _ in groups]) if hidden else "")


def everything(parser: argparse.ArgumentParser) -> str:
    """All options."""
    return _page(parser, _groups(parser), "")


def about(parser: argparse.ArgumentParser, word: str) -> str:
    """The flag of that name, and the groups named after it; else those that have the word in their title, and the options that it says
    something about. A word with its dashes is the flag alone.

    Below a command that has commands: what theirs say, each option once. Empty where there is nothing.
    """
    children = children_of(parser)
    if word in children:
        return children[word].format_help()
    if not children:
        return _page(parser, found, "") if (found := _about(parser, word)) else ""
    seen: set[str] = set()
    pages = []
    for leaf in _leaves(parser):
        news = _only(_about(leaf, word), lambda action: not seen.intersection(action.option_strings))
        seen.update(name for _, actions in news for action in actions for name in action.option_strings)
        pages += [_page(leaf, news, "", described=False)] if news else []
    return "\n".join(pages)


def children_of(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    """The commands below this one, by name."""
    actions = (action for action in parser._actions if isinstance(action, argparse._SubParsersAction))
    return {name: child for action in actions for name, child in action.choices.items()}


def _leaves(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    children = children_of(parser)
    for child in children.values():
        yield from _leaves(child)
    if not children:
        yield parser


def _groups(parser: argparse.ArgumentParser) -> Groups:
    """Options by the heading that they stand under; argparse's own group, which holds ``--help``, comes last."""
    named = [(group.title or "", list(group._group_actions)) for group in parser._action_groups]
    positional, options, *others = named
    return [(title, actions) for title, actions in (positional, *others, options) if actions]


def _only(groups: Groups, wanted: Callable[[argparse.Action], bool]) -> Groups:
    kept = [(title, [action for action in actions if wanted(action)]) for title, actions in groups]
    return [(title, actions) for title, actions in kept if actions]


def _about(parser: argparse.ArgumentParser, word: str) -> Groups:
    flag = "--" + word.lstrip("-").replace("_", "-").lower()
    groups = _groups(parser)
    exact = _only(groups, lambda action: flag in action.option_strings)
    if exact and word.startswith("-"):
        return exact
    has = re.compile(r"\b" + re.escape(word.lstrip("-")), re.IGNORECASE).search
    named = [(title, actions) for title, actions in groups if has(_name(title) if exact else title)]
    titles = {title for title, _ in named}
    rest = [(title, actions) for title, actions in exact or groups if title not in titles]
    return named + (rest if exact else _only(rest, lambda action: bool(has(" ".join((*action.option_strings, action.help or ""))))))


def _name(title: str) -> str:
    """What a group is called, without what it is said to hold."""
    return title.partition(":")[0]


def _page(parser: argparse.ArgumentParser, groups: Groups, epilog: str, *, described: bool = True) -> str:
    formatter = parser._get_formatter()
    formatter.add_usage(parser.usage, parser._actions, parser._mutually_exclusive_groups)
    formatter.add_text(parser.description if described else None)
    for title, actions in groups:
        formatter.start_section(title)
        formatter.add_arguments(actions)
        formatter.end_section()
    formatter.add_text(epilog)
    return formatter.format_help()


def _more(parser: argparse.ArgumentParser, hidden: int, titles: Sequence[str]) -> str:
    names = " · ".join(map(_name, titles))
    how = f"{hidden} more options: {parser.prog} --help=all shows them, --help=WORD one of them, a group, or those that are about a word."
    width = Formatter(parser.prog)._width
    return "\n".join(textwrap.fill(line, width, break_on_hyphens=False) for line in (how, f"Groups: {names}"))
