"""The ``mqlab`` command: serve, fetch, bench, compare, and a look at what runs. Errors are told in a few lines, never as a traceback."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

from mqlab.arguments import (
    agreement_configs,
    build_parser,
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
    serve_configs,
    throughput_configs,
)
from mqlab.config import Settings, check_ranks
from mqlab.errors import ConfigError, EngineDeadError, EngineStartError, MqlabError
from mqlab.flags import HelpShown, read_config
from mqlab.notes import notes_of
from mqlab.probes.options import ProfileConfig

Command = Callable[[], int]

_TAIL_LINES = 10


def entry() -> NoReturn:
    """The console script: ``main``, then out."""
    status = main()
    if threading.active_count() > 1:
        # A core that nobody waits for any more may still be loading; taking the interpreter down around native code aborts.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
    sys.exit(status)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command.

    Returns:
        the exit status: 0, 1 for a failure, 2 for wrong arguments, 130 for an interrupt.
    """
    try:
        command = _command(sys.argv[1:] if argv is None else argv)
    except HelpShown:
        return 0
    except ConfigError as error:
        return _fail(str(error), 2)
    try:
        return command()
    except KeyboardInterrupt:
        return _fail("interrupted", 130)
    except EngineStartError as error:
        # The engine wrote to the same terminal and may have left a progress bar's line open.
        print(file=sys.stderr)
        return _fail(_explain(error), 1)
    except MqlabError as error:
        return _fail(_explain(error), 1)
    except OSError as error:  # a full disk, a folder that may not be written
        return _fail(str(error), 1)


def _command(argv: Sequence[str]) -> Command:
    namespace = build_parser().parse(argv)
    return _COMMANDS[namespace.command](namespace)


def _serve(namespace: argparse.Namespace) -> Command:
    configs = serve_configs(namespace)

    def run() -> int:
        from mqlab.wire.log import log_to_stderr
        from mqlab.wire.parent import end_with_launcher

        log_to_stderr()
        if (torchrun := Settings.read().torchrun) is not None:
            if torchrun.launched:  # which stops its processes by SIGTERM, unless it is killed itself
                end_with_launcher(signal.SIGKILL if torchrun.rank else signal.SIGTERM)
            check_ranks(configs[0], torchrun)
            if torchrun.rank > 0:
                from mqlab.model.parallel.torchrun import work

                return work(torchrun)
        from mqlab.server.launch import serve

        for note in notes_of(configs[0]):
            print(f"mqlab: {note}", file=sys.stderr)
        return serve(*configs)

    return run


def _fetch(namespace: argparse.Namespace) -> Command:
    def run() -> int:
        from mqlab.models.fetch import fetch

        print(fetch(namespace.name, Settings.read().cache_dir))
        return 0

    return run


def _main(read: Callable[[argparse.Namespace], Sequence[Any]], module: str) -> Callable[[argparse.Namespace], Command]:
    """A command that reads its configs and hands them to a module's ``main``, which is imported only then."""

    def command(namespace: argparse.Namespace) -> Command:
        configs = read(namespace)
        return lambda: import_module(module).main(*configs)

    return command


def _ps(namespace: argparse.Namespace) -> Command:
    del namespace

    def run() -> int:
        from mqlab.probes.running import listing
        from mqlab.wire.registry import Registry

        entries = Registry().entries()
        print(listing(entries) if entries else "no engine of this user is running; 'mqlab serve MODEL' starts one")
        return 0

    return run


def _stop(namespace: argparse.Namespace) -> Command:
    if namespace.all and namespace.target is not None:
        raise ConfigError(f"stop takes a target or --all, not both; got {namespace.target!r} and --all")

    def run() -> int:
        from mqlab.probes.running import find
        from mqlab.wire.registry import Registry

        registry = Registry()
        entries = registry.entries() if namespace.all else [find(namespace.target)]
        for entry in entries:
            registry.stop(entry)
            print(f"engine {entry.model} (pid {entry.pid}) stopped")
        if not entries:
            print("no engine of this user is running")
        return 0

    return run


def _profile(namespace: argparse.Namespace) -> Command:
    config = read_config(namespace, ProfileConfig)

    def run() -> int:
        from mqlab.probes.pyspy import new_folder, record
        from mqlab.probes.running import find, pids

        folder = Path(config.folder) if config.folder else new_folder()
        how = {"rate": config.rate, "idle": config.idle, "native": config.native, "gil": config.gil}
        capture = record(pids(find(namespace.target)), config.seconds, folder, **how, progress=True)
        print(capture)
        print(f"speedscope: {capture.speedscope}\nflame graph: {capture.svg}")
        return 0

    return run


def _metrics(namespace: argparse.Namespace) -> Command:
    def run() -> int:
        from mqlab.probes.running import find, metrics_of

        print(metrics_of(find(namespace.target)), end="")
        return 0

    return run


def _trace(namespace: argparse.Namespace) -> Command:
    def run() -> int:
        from mqlab.probes.running import find, trace_of
        from mqlab.record.trace import Trace

        target = namespace.target
        path = Path(target or "")
        is_path = target is not None and not target.isdigit() and path.exists()
        trace = Trace.load(path) if is_path else trace_of(find(target))
        saved = [f"saved as {trace.save(namespace.save)}"] if namespace.save is not None else []
        exported = [f"exported to {trace.export(namespace.export)}; open it at https://ui.perfetto.dev"] if namespace.export else []
        print("\n".join([repr(trace), *saved, *exported]))
        return 0

    return run


def _bench(namespace: argparse.Namespace) -> Command:
    return _BENCHES[namespace.bench](namespace)


_BENCHES: dict[str, Callable[[argparse.Namespace], Command]] = {
    "throughput": _main(throughput_configs, "mqlab.bench.throughput"),
    "calibration": _main(agreement_configs, "mqlab.bench.agreement"),
    "latency": _main(latency_configs, "mqlab.bench.latency"),
    "scheduler": _main(scheduler_configs, "mqlab.bench.scheduler"),
    "codecs": _main(codecs_configs, "mqlab.bench.codecs"),
    "frontend": _main(frontend_configs, "mqlab.bench.frontend.run"),
    "capacity": _main(capacity_configs, "mqlab.bench.capacity"),
    "serve": _main(load_configs, "mqlab.bench.serve"),
    "device": _main(device_configs, "mqlab.bench.device.run"),
    "sampler": _main(sampler_configs, "mqlab.bench.sampler"),
    "seeds": _main(seeds_configs, "mqlab.bench.seeds.run"),
}
_COMMANDS: dict[str, Callable[[argparse.Namespace], Command]] = {
    "serve": _serve,
    "fetch": _fetch,
    "bench": _bench,
    "calibrate": _main(calibrate_configs, "mqlab.bench.calibrate"),
    "compare": _main(compare_configs, "mqlab.bench.compare"),
    "check-topology": _main(check_configs, "mqlab.contract.suite"),
    "ps": _ps,
    "stop": _stop,
    "profile": _profile,
    "metrics": _metrics,
    "trace": _trace,
}


def _explain(error: MqlabError) -> str:
    """The message without the engine's own traceback, which is in its log."""
    if isinstance(error, EngineDeadError):
        return error.cause
    if isinstance(error, EngineStartError):
        code = "" if error.exit_code is None else f" (exit code {error.exit_code})"
        crashed = "" if "Traceback" in error.log_tail else "\n".join(["", *error.log_tail.strip().splitlines()[-_TAIL_LINES:]])
        return f"{error.cause}{code}{crashed.rstrip()}"
    return str(error)


def _fail(message: str, status: int) -> int:
    print(f"mqlab: {message}", file=sys.stderr)
    return status
