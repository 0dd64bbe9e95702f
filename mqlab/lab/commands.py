"""What each command of ``%mqlab`` does. Each returns what it made, for the magic to bind to a variable and to show."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from mqlab.arguments import (
    agreement_configs,
    calibrate_configs,
    capacity_configs,
    check_configs,
    codecs_configs,
    compare_configs,
    device_configs,
    frontend_configs,
    latency_configs,
    load_configs,
    sampler_configs,
    scheduler_configs,
    seeds_configs,
    throughput_configs,
)
from mqlab.bench.compare import compare
from mqlab.bench.comparison import Comparison
from mqlab.bench.output import check_output, write_output
from mqlab.bench.seeds.run import seeds
from mqlab.bench.serve import result_folder, save, serve_bench
from mqlab.bench.serve_result import ServeResult
from mqlab.config import Settings
from mqlab.contract.suite import check_topology
from mqlab.contract.verdict import Verdict
from mqlab.errors import BenchError, ConfigError
from mqlab.flags import read_config
from mqlab.lab.apart import run_apart
from mqlab.lab.chosen import of_session
from mqlab.lab.opening import open_saved
from mqlab.lab.registry import SESSIONS
from mqlab.lab.running import Running
from mqlab.lab.serving import served_of, start
from mqlab.lab.session import Session
from mqlab.lab.targets import DEFAULT, foreign_engine, is_engine, no_session, session_of, trace_of
from mqlab.models.fetch import fetch
from mqlab.probes.options import ProfileConfig
from mqlab.probes.running import find
from mqlab.wire.registry import Entry, Registry
from mqlab.wire.spec import Spec

Command = Callable[[argparse.Namespace], Any]


def serve(arguments: argparse.Namespace) -> Session:
    """Start a session, or take the one that serves the same."""
    name = arguments.variable
    served = served_of(arguments)
    session = SESSIONS.find(served)
    if session is not None:
        note = f"already running, {session.where()}, started {session.age_s:.0f} s ago: reused"
    else:
        before = _replace(name)
        session, note = start(served, name)
        note = before + note
    SESSIONS.add(name, session, served)
    return _said(session, f"{name} = {session!r}, {note}", arguments)


def attach(arguments: argparse.Namespace) -> Session:
    """A session over an engine that runs already."""
    name = arguments.variable
    entry = foreign_engine(arguments.target)
    session = SESSIONS.get(name)
    if session is not None and session.attached and str(entry.pid) in session.addresses and session.state()[0] == "ready":
        return _said(session, f"{name} = {session!r}, attached already", arguments)
    session = Session.attach(entry.pid, name=name)
    note = _replace(name)
    SESSIONS.add(name, session, None)
    return _said(session, f"{name} = {session!r}, {note}attached; stopping it leaves the engine running", arguments)


def ps(arguments: argparse.Namespace) -> Running:
    """The sessions of this kernel, and what else of this user's runs."""
    del arguments
    return Running(SESSIONS.live())


def stop(arguments: argparse.Namespace) -> None:
    """Stop one session, somebody else's engine, or all."""
    if arguments.all:
        if arguments.target is not None:
            raise ConfigError(f"stop takes a target or --all, not both; got {arguments.target!r} and --all")
        _stop_all()
        return
    name = arguments.target or DEFAULT
    own = next(((label, one) for label, one in SESSIONS.live().items() if _is_own(name, label, one)), None)
    if own is not None:
        _end_session(*own)
    elif is_engine(name):
        _end_engine(find(name))
    else:
        raise no_session(name)


def _is_own(target: str, name: str, session: Session) -> bool:
    """Whether a session is meant; the pid of one that is only attached to means the engine itself."""
    return target == name or (target in session.addresses and not session.attached)


def _stop_all() -> None:
    live, entries = SESSIONS.live(), Registry().entries()
    for name, session in live.items():
        _end_session(name, session)
    for entry in Registry().entries():
        _end_engine(entry)
    if not live and not entries:
        print("nothing runs")


def _end_session(name: str, session: Session) -> None:
    dead = session.state()[0] == "dead"
    session.stop()
    left = "had ended" if dead else "runs on"
    print(f"{name} detached; its engine {left}" if session.attached else f"{name} stopped")


def _end_engine(entry: Entry) -> None:
    Registry().stop(entry)
    print(f"engine {entry.model} (pid {entry.pid}) stopped")


def bench(arguments: argparse.Namespace) -> Any:
    """Those of an engine in a process of their own; load on a server, or on a session; the seeds' experiments."""
    if arguments.bench == "serve":
        return _load(arguments)
    if arguments.bench == "seeds":
        return seeds(*seeds_configs(arguments), progress=not arguments.quiet)
    if arguments.bench == "throughput":
        engine, config, dataset, timing = throughput_configs(arguments)
        call = Spec("mqlab.bench.throughput:throughput", {"engine": engine, "workload": config, "dataset": dataset, "timing": timing})
    elif arguments.bench == "sampler":
        (config,) = sampler_configs(arguments)
        call = Spec("mqlab.bench.sampler:sampler", {"config": config})
    elif arguments.bench == "device":
        (config,) = device_configs(arguments)
        call = Spec("mqlab.bench.device.run:device", {"config": config})
    elif arguments.bench == "calibration":
        engine, config, timing = agreement_configs(arguments)
        call = Spec("mqlab.bench.agreement:agreement", {"engine": engine, "config": config, "timing": timing})
    elif arguments.bench == "scheduler":
        engine, config = scheduler_configs(arguments)
        call = Spec("mqlab.bench.scheduler:scheduler", {"engine": engine, "config": config})
    elif arguments.bench == "codecs":
        (config,) = codecs_configs(arguments)
        call = Spec("mqlab.bench.codecs:codecs", {"config": config})
    elif arguments.bench == "frontend":
        (config,) = frontend_configs(arguments)
        call = Spec("mqlab.bench.frontend.run:frontend", {"config": config})
    elif arguments.bench == "capacity":
        engine, config, dataset = capacity_configs(arguments)
        call = Spec("mqlab.bench.capacity:capacity", {"engine": engine, "config": config, "dataset": dataset})
    else:
        engine, config, timing = latency_configs(arguments)
        call = Spec("mqlab.bench.latency:latency", {"engine": engine, "config": config, "timing": timing})
    check_output(config.output_json)
    result = run_apart(call, quiet=arguments.quiet)
    write_output(config.output_json, result.as_record())
    return result


def _load(arguments: argparse.Namespace) -> ServeResult:
    load, dataset = load_configs(arguments)
    if arguments.quiet:
        load = replace(load, disable_tqdm=True)
    folder = result_folder(load)
    if arguments.session is None:
        result = serve_bench(load, dataset)
    else:
        with session_of(arguments.session) as session:
            result = serve_bench(of_session(session.info, load), dataset, session.url, watch=session.pids)
    if not result.good:
        raise BenchError(f"no request succeeded:\n{result}")
    if load.saves:
        print(f"written to {save(result, folder)}")
    return result


def compare_(arguments: argparse.Namespace) -> Comparison:
    """Arms that differ in one setting, in turns."""
    engine, config, timing = compare_configs(arguments)
    check_output(config.output_json)
    result = compare(engine, config, timing, progress=not arguments.quiet)
    write_output(config.output_json, result.as_record())
    return result


def calibrate(arguments: argparse.Namespace) -> Any:
    """This machine as a simulated device, timed in a process of its own."""
    engine, config = calibrate_configs(arguments)
    check_output(config.output_json)
    result = run_apart(Spec("mqlab.bench.calibrate:calibrate", {"engine": engine, "config": config}), quiet=arguments.quiet)
    write_output(config.output_json, result.as_record())
    return result


def check_topology_(arguments: argparse.Namespace) -> Verdict:
    """A layout of the user's own against the contract, in processes of its own."""
    (config,) = check_configs(arguments)
    return check_topology(config, progress=not arguments.quiet)


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
    "calibrate": calibrate,
    "compare": compare_,
    "check-topology": check_topology_,
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
