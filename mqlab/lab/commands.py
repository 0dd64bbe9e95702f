"""What each command of ``%mqlab`` does. Each returns what it made, for the magic to bind to a variable and to show."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

from mqlab.arguments import compare_configs, latency_configs, load_configs, read_config, throughput_configs
from mqlab.bench.compare import compare
from mqlab.bench.serve import serve_bench
from mqlab.config import Settings
from mqlab.errors import BenchError, ConfigError
from mqlab.lab.apart import run_apart
from mqlab.lab.chosen import of_session
from mqlab.lab.opening import open_saved
from mqlab.lab.registry import SESSIONS
from mqlab.lab.running import Running
from mqlab.lab.serving import served_of, start
from mqlab.lab.session import Session
from mqlab.lab.targets import DEFAULT, no_session, session_of, trace_of
from mqlab.models.fetch import fetch
from mqlab.probes.options import ProfileConfig
from mqlab.probes.running import find
from mqlab.wire.registry import Registry

Command = Callable[[argparse.Namespace], Any]


def serve(arguments: argparse.Namespace) -> Session:
    """Start a session, or take the one that serves the same."""
    name = arguments.variable
    served = served_of(arguments)
    session = SESSIONS.find(served)
    begin = time.monotonic()
    if session is not None:
        note = f"already running, {session.where()}, started {session.age_s:.0f} s ago: reused"
    else:
        note = _replace(name)
        session = start(served, name)
        note += f"ready after {time.monotonic() - begin:.1f} s"
    SESSIONS.add(name, session, served)
    return _said(session, f"{name} = {session!r}, {note}", arguments)


def attach(arguments: argparse.Namespace) -> Session:
    """A session over an engine that runs already."""
    note = _replace(arguments.variable)
    session = Session.attach(arguments.target, name=arguments.variable)
    SESSIONS.add(arguments.variable, session, None)
    return _said(session, f"{arguments.variable} = {session!r}, {note}attached", arguments)


def ps(arguments: argparse.Namespace) -> Running:
    """The sessions of this kernel, and what else of this user's runs."""
    del arguments
    return Running(SESSIONS.live())


def stop(arguments: argparse.Namespace) -> None:
    """Stop one session, somebody else's engine, or all."""
    live = SESSIONS.live()
    name = arguments.target or DEFAULT
    if arguments.all and arguments.target is not None:
        raise ConfigError(f"stop takes a target or --all, not both; got {arguments.target!r} and --all")
    if not arguments.all and name not in live and not name.isdigit():
        raise no_session(name)
    for each in live if arguments.all else [name] if name in live else []:
        live[each].stop()
        print(f"{each} stopped" if not live[each].attached else f"{each} detached; its engine runs on")
    for entry in Registry().entries() if arguments.all else [] if name in live else [find(name)]:
        Registry().stop(entry)
        print(f"engine {entry.model} (pid {entry.pid}) stopped")


def bench(arguments: argparse.Namespace) -> Any:
    """Throughput and latency in a process of their own; load on a server, or on a session."""
    if arguments.bench == "throughput":
        engine, workload, dataset, timing = throughput_configs(arguments)
        return run_apart("mqlab.bench.throughput:throughput", engine=engine, workload=workload, dataset=dataset, timing=timing)
    if arguments.bench == "latency":
        engine, config, timing = latency_configs(arguments)
        return run_apart("mqlab.bench.latency:latency", engine=engine, config=config, timing=timing)
    load, dataset = load_configs(arguments)
    if arguments.session is None:
        result = serve_bench(load, dataset)
    else:
        with session_of(arguments.session) as session:
            result = serve_bench(of_session(session.info, load), dataset, session.url, watch=session.pids)
    if not result.good:
        raise BenchError(f"no request succeeded:\n{result}")
    return result


def compare_(arguments: argparse.Namespace) -> Any:
    """Arms that differ in one setting, in turns."""
    return compare(*compare_configs(arguments))


def profile(arguments: argparse.Namespace) -> Any:
    """A capture of engine and front."""
    config = read_config(arguments, ProfileConfig)
    with session_of(arguments.target) as session:
        return session.profile(
            config.seconds, rate=config.rate, idle=config.idle, native=config.native, gil=config.gil, folder=config.folder
        )


def metrics(arguments: argparse.Namespace) -> Any:
    """What an engine does right now."""
    with session_of(arguments.target) as session:
        return session.metrics()


def trace(arguments: argparse.Namespace) -> Any:
    """What was recorded, kept or exported where asked."""
    found = trace_of(arguments.target)
    if arguments.save is not None:
        print(f"saved as {found.save(arguments.save)}")
    if arguments.export is not None:
        print(f"exported to {found.export(arguments.export)}; open it at https://ui.perfetto.dev")
    return found


def open_(arguments: argparse.Namespace) -> Any:
    """A saved trace, capture or result."""
    return open_saved(arguments.path)


def fetch_(arguments: argparse.Namespace) -> None:
    """A model by a known name, into the cache."""
    print(fetch(arguments.name, Settings.read().cache_dir))


COMMANDS: dict[str, Command] = {
    "serve": serve,
    "attach": attach,
    "ps": ps,
    "stop": stop,
    "bench": bench,
    "compare": compare_,
    "profile": profile,
    "metrics": metrics,
    "trace": trace,
    "open": open_,
    "fetch": fetch_,
}

TELLING = ("serve", "attach")
"""Commands that say in a line what they made, instead of showing it."""


def _said(session: Session, line: str, arguments: argparse.Namespace) -> Session:
    if not arguments.quiet:
        print(line)
    return session


def _replace(name: str) -> str:
    """Make room for a session of that name; says what was in the way."""
    before = SESSIONS.get(name)
    if before is None:
        return ""
    others = [f"{other!r}" for other in SESSIONS.names(before) if other != name]
    before.stop()
    also = f", which was {' and '.join(others)} as well," if others else ""
    return f"the one before{also} was stopped (it served something else, or was not well), "
