"""``%mqlab serve | ps | stop``: the notebook's side of the command line's argument tree.

A wrong argument raises ConfigError, never SystemExit (a traceback, and a dead script) nor IPython's UsageError (which test tools
for notebooks take for success).
"""

from __future__ import annotations

import argparse
import keyword
import shlex
import time
from collections.abc import Callable

from IPython.core.interactiveshell import InteractiveShell
from IPython.core.magic import Magics, line_magic, magics_class

from mqlab.arguments import HelpShown, Parser, add_serve, serve_configs
from mqlab.config import ServerConfig, Settings
from mqlab.errors import ConfigError
from mqlab.lab.registry import SESSIONS, Served
from mqlab.lab.session import Session
from mqlab.models.resolve import resolve

_NOTEBOOK_TOPOLOGY = "mq"


def build_parser() -> Parser:
    """The tree of ``%mqlab``: the command line's ``serve`` with ``-o`` and ``--quiet``, and what only a notebook needs."""
    parser = Parser(prog="mqlab", description="Engines of this notebook.", usage="%(prog)s COMMAND [options]")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True, prog="mqlab")
    serve = add_serve(commands)
    serve.add_argument("-o", "--output", metavar="NAME", default="lab", help="the variable that holds the session (default: lab)")
    serve.add_argument("--quiet", action="store_true", help="print nothing")
    serve.set_defaults(topology=_NOTEBOOK_TOPOLOGY)
    commands.add_parser("ps", prog="mqlab ps", help="list the sessions of this kernel", description="List the sessions of this kernel.")
    stop = commands.add_parser("stop", prog="mqlab stop", help="stop a session", description="Stop a session, by default 'lab'.")
    stop.add_argument("name", metavar="NAME", nargs="?", default=None, help="the session (default: lab)")
    stop.add_argument("--all", action="store_true", help="stop every session of this kernel")
    return parser


@magics_class
class MqlabMagics(Magics):
    """The line magic ``%mqlab``; ``%mqlab --help`` lists its commands."""

    @line_magic
    def mqlab(self, line: str) -> None:
        """``%mqlab serve MODEL [options] -o NAME [--quiet]`` · ``%mqlab ps`` · ``%mqlab stop [NAME | --all]``; ``--help`` after each.

        Raises:
            ConfigError: a wrong argument; the message ends with a short usage. ModelError, EngineStartError: nothing is left running.
        """
        try:
            arguments = build_parser().parse(_split(line))
        except HelpShown:
            return
        commands: dict[str, Callable[[argparse.Namespace], None]] = {"serve": self.serve, "ps": self.ps, "stop": self.stop}
        commands[arguments.command](arguments)

    def serve(self, arguments: argparse.Namespace) -> None:
        """Start a session, or take the one that serves the same, and bind it to a variable."""
        name = _variable(arguments.output)
        served = _served(arguments)
        session = SESSIONS.find(served)
        if session is not None:
            note = f"already running for {session.age_s:.0f} s"
        else:
            resolve(served.config.model, Settings.read().cache_dir)  # a wrong model must not cost the session that runs
            note = _replace(name)
            start = time.monotonic()
            session = Session.of(served.config, served.topology, codec=served.codec, timing=served.timing, name=name)
            note += f"ready after {time.monotonic() - start:.1f} s"
        SESSIONS.add(name, session, served)
        assert isinstance(self.shell, InteractiveShell)
        self.shell.user_ns[name] = session
        if not arguments.quiet:
            print(f"{name} = {session!r}, {note}")

    def ps(self, arguments: argparse.Namespace) -> None:
        """List the sessions of this kernel."""
        del arguments
        sessions = SESSIONS.live()
        for name, session in sessions.items():
            print(f"{name:<10} {session!r}, up {session.age_s:.0f} s")
        if not sessions:
            print("no session in this kernel; %mqlab serve MODEL starts one")

    def stop(self, arguments: argparse.Namespace) -> None:
        """Stop one session or all."""
        live = SESSIONS.live()
        if arguments.all and arguments.name is not None:
            raise ConfigError(f"stop takes a name or --all, not both; got {arguments.name!r} and --all")
        name = arguments.name or "lab"
        if not arguments.all and name not in live:
            raise ConfigError(f"no session {name!r} runs in this kernel; there is {', '.join(live) or 'none'}")
        for each in live if arguments.all else [name]:
            live[each].stop()
            print(f"{each} stopped")


def _split(line: str) -> list[str]:
    try:
        return shlex.split(line)
    except ValueError as error:
        raise ConfigError(f"%mqlab {line}: {error}; close the quote") from None


def _variable(name: str) -> str:
    if not name.isidentifier() or keyword.iskeyword(name):
        raise ConfigError(f"-o {name!r} is not a name that a variable can have; choose one like 'lab'")
    return name


def _served(arguments: argparse.Namespace) -> Served:
    config, server, timing = serve_configs(arguments)
    plain = ServerConfig()
    for field in ("host", "port", "drain_timeout"):
        if getattr(server, field) != getattr(plain, field):
            flag = "--" + field.replace("_", "-")
            raise ConfigError(f"{flag}: a notebook session opens no HTTP port; run 'mqlab serve' in a terminal, or leave {flag} out")
    return Served(config, server.topology, server.codec, timing)


def _replace(name: str) -> str:
    """Make room for a session of that name; says what was in the way."""
    before = SESSIONS.get(name)
    if before is None:
        return ""
    others = [f"{other!r}" for other in SESSIONS.names(before) if other != name]
    before.stop()
    also = f", which was {' and '.join(others)} as well," if others else ""
    return f"the one before{also} was stopped (it served something else, or was not well), "


def load_ipython_extension(shell: InteractiveShell) -> None:
    """Give the shell the magic ``%mqlab``."""
    shell.register_magics(MqlabMagics)
