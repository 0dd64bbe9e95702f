"""``%mqlab`` and ``%%mqlab profile``: the notebook's side of the command line's argument tree.

A wrong argument raises ConfigError, never SystemExit (a traceback, and a dead script) nor IPython's UsageError (which test tools
for notebooks take for success).
"""

from __future__ import annotations

import argparse
import keyword
import re
import shlex
from collections.abc import Sequence
from typing import Any

from IPython.core.completer import CompletionContext, SimpleCompletion, SimpleMatcherResult, context_matcher
from IPython.core.interactiveshell import InteractiveShell
from IPython.core.magic import Magics, line_cell_magic, line_magic, magics_class
from IPython.display import display

from mqlab.arguments import build_parser
from mqlab.errors import ConfigError
from mqlab.flags import HelpShown, Parser
from mqlab.lab.cellcapture import begin_with_cell
from mqlab.lab.commands import COMMANDS, TELLING
from mqlab.lab.completion import BENCHES, complete

CELL = re.compile(r"%%mqlab(\s|$)")
LINE = re.compile(r"(?:^|=)\s*%%?mqlab +([^\n]*)$", re.MULTILINE)


@magics_class
class MqlabMagics(Magics):
    """The line magic ``%mqlab``; its help is appended to its docstring, so that ``%mqlab?`` shows it."""

    @line_cell_magic
    def mqlab(self, line: str, cell: str | None = None) -> None:
        """Serve, measure and look at LLM engines. ``%mqlab COMMAND --help`` explains a command.

        Results are shown, and bound to the variable that ``-o NAME`` names; ``--quiet`` shows nothing.

        Raises:
            ConfigError: a wrong argument; the message ends with a short usage. ModelError, EngineStartError: nothing is left running.
        """
        if cell is not None:
            raise ConfigError(f"%%mqlab {line}: works where the cell itself begins with it, for its body is not run from here")
        argv = split(line)
        try:
            arguments = parser().parse(argv)
        except HelpShown:
            return
        self.run(arguments)

    @line_magic("%mqlab")
    def misplaced(self, line: str) -> None:
        """What a ``%%mqlab`` below the first line of a cell comes to.

        Raises:
            ConfigError: always.
        """
        raise ConfigError(f"%%mqlab {line}: must be the first line of its cell")

    @line_magic
    def mqlab_cell(self, line: str) -> None:
        """Begin a capture that the end of the running cell ends.

        Raises:
            ConfigError: another command than profile, or a wrong argument.
        """
        argv = split(line)
        if argv[:1] != ["profile"]:
            raise ConfigError(f"%%mqlab {line}: only profile takes a cell; write %mqlab with one percent sign for a line")
        try:
            arguments = parser().parse(argv)
        except HelpShown:
            return
        check_variable(arguments.variable)
        whole = "--seconds" not in {word.partition("=")[0] for word in argv}
        assert isinstance(self.shell, InteractiveShell)
        begin_with_cell(
            self.shell, arguments, whole, lambda capture: self.hand_over(capture, arguments.variable, shown=not arguments.quiet)
        )

    def run(self, arguments: argparse.Namespace) -> None:
        """Run a command, bind and show what it made."""
        name = getattr(arguments, "variable", None)
        if name is not None:
            check_variable(name)
        made = COMMANDS[arguments.command](arguments)
        self.hand_over(made, name, shown=arguments.command not in TELLING and not getattr(arguments, "quiet", False))

    def hand_over(self, made: Any, name: str | None, *, shown: bool) -> None:
        """Bind what a command made to a variable, and show it."""
        if made is None:
            return
        if name is not None:
            assert isinstance(self.shell, InteractiveShell)
            self.shell.user_ns[name] = made
        if shown:
            display(made)


def parser() -> Parser:
    """The tree of ``%mqlab``."""
    return build_parser("mqlab", notebook=True)


def split(line: str) -> list[str]:
    """The words of a magic's line; ``bench NAME …`` is short for ``bench serve --session NAME …``, of a URL for ``--base-url URL``.

    Raises:
        ConfigError: a quote is not closed.
    """
    try:
        argv = shlex.split(line)
    except ValueError as error:
        raise ConfigError(f"%mqlab {line}: {error}; close the quote") from None
    if len(argv) > 1 and argv[0] == "bench" and argv[1] not in BENCHES and not argv[1].startswith("-"):
        flag = "--base-url" if argv[1].startswith(("http://", "https://")) else "--session"
        return ["bench", "serve", flag, argv[1], *argv[2:]]
    return argv


def check_variable(name: str) -> None:
    """Refuse what cannot name a variable.

    Raises:
        ConfigError
    """
    if not name.isidentifier() or keyword.iskeyword(name):
        raise ConfigError(f"-o {name!r} is not a name that a variable can have; choose one like 'lab'")


def cell_magic(lines: Sequence[str]) -> list[str]:
    """An input transformer: ``%%mqlab profile …`` becomes a line that begins a capture which the end of the cell ends.

    Not a cell magic of IPython's, which would have to run the cell's body itself and could not await in it.
    """
    if not lines or not CELL.match(lines[0]):
        return list(lines)
    rest = lines[0].removeprefix("%%mqlab").strip()
    return [f"get_ipython().run_line_magic('mqlab_cell', {rest!r})\n", *lines[1:]]


@context_matcher()
def complete_line(context: CompletionContext) -> SimpleMatcherResult:
    """What can follow on a line of ``%mqlab``, and nothing else: none of Python's names belong there."""
    found = LINE.search(context.text_until_cursor)
    if found is None:
        return SimpleMatcherResult(completions=[])
    line = found[1]
    completions = [SimpleCompletion(text=text, type="magic") for text in complete(line)]
    return SimpleMatcherResult(completions=completions, matched_fragment=line.rpartition(" ")[2], suppress=True)


def load_ipython_extension(shell: InteractiveShell) -> None:
    """Give the shell ``%mqlab``, ``%%mqlab profile`` and their completion."""
    shell.register_magics(MqlabMagics)
    if cell_magic not in shell.input_transformers_cleanup:
        shell.input_transformers_cleanup.append(cell_magic)
    completer = shell.Completer
    if completer is not None and complete_line not in completer.custom_matchers:
        completer.custom_matchers.append(complete_line)


MqlabMagics.mqlab.__doc__ = f"{MqlabMagics.mqlab.__doc__}\n\n{parser().format_help()}"
