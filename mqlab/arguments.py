"""The argument tree that the command line and the notebook's magics share, generated from the config classes."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import fields, replace
from itertools import chain
from typing import Any

from mqlab.bench.agreement_options import AgreementConfig
from mqlab.bench.calibrate_options import CalibrateConfig
from mqlab.bench.capacity_options import CapacityConfig
from mqlab.bench.codecs_options import CodecsConfig
from mqlab.bench.compare_options import CompareConfig
from mqlab.bench.device.options import DeviceConfig
from mqlab.bench.frontend.options import FrontendConfig
from mqlab.bench.load_options import LoadConfig
from mqlab.bench.options import DatasetConfig, LatencyConfig, ThroughputConfig
from mqlab.bench.sampler_options import SamplerConfig
from mqlab.bench.scheduler_options import SchedulerConfig
from mqlab.bench.seeds.options import SeedsConfig
from mqlab.config import EngineConfig, ServerConfig, Timing, check
from mqlab.contract.options import CheckConfig
from mqlab.flags import Parser, add_config, as_arguments, read_config
from mqlab.probes.options import ProfileConfig
from mqlab.spelling import ENGINE_FLAGS
from mqlab.topologies import TOPOLOGIES
from mqlab.topologies.userfile import is_file

Commands = argparse._SubParsersAction  # the type of what add_subparsers returns; argparse gives it no public name

_NOTEBOOK_TOPOLOGY = "mq"


class _Layouts(tuple[str, ...]):
    """Choices of a topology: names, and any .py file, of which the layout itself says what is wrong with it."""

    def __contains__(self, name: object) -> bool:
        return super().__contains__(name) or is_file(str(name))


_TOPOLOGY = {"choices": _Layouts(name.replace("_", "-") for name in TOPOLOGIES)}


class _Version(argparse.Action):
    """``--version``, looked up only when asked for."""

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        from importlib.metadata import version

        print(f"mqlab {version('mqlab')}")
        parser.exit()


def build_parser(prog: str = "mqlab", *, notebook: bool = False) -> Parser:
    """The whole tree; ``namespace.command``, and ``namespace.bench`` of a bench, say what was asked for.

    Args:
        notebook: with what only a notebook has: attach, open, ``-o NAME``, ``--quiet``, targets by the name of a variable.
    """
    parser = Parser(prog=prog, description="A research workbench for LLM serving engines.", usage="%(prog)s COMMAND [options]")
    if not notebook:
        parser.add_argument("--version", action=_Version, nargs=0, help="print the version")
    commands = parser.add_subparsers(title="commands", dest="command", metavar="COMMAND", required=True, prog=prog)
    measuring = (add_bench, add_compare, add_calibrate, add_check, add_profile)
    for add in (add_serve, add_ps, add_stop, *measuring, add_metrics, add_trace, add_fetch):
        add(commands, notebook)
    if notebook:
        add_attach(commands, notebook)
        add_open(commands, notebook)
    return parser


def add_serve(commands: Commands, notebook: bool = False) -> Parser:
    """``serve MODEL``: read its namespace with ``serve_configs``."""
    what = "Start an engine with a live client." if notebook else "Start an engine and an OpenAI-compatible server."
    parser = _add_command(commands, "serve", "MODEL [options]", what)
    _add_engine(parser, positional=("model",))
    add_config(parser, ServerConfig, topology=_TOPOLOGY)
    add_config(parser, Timing)
    parser.add_argument("--disable-frontend-multiprocessing", action="store_true", help="vLLM's spelling of --topology aio")
    if notebook:
        _add_output(parser, "lab", "the session")
        parser.add_argument("--detach", action="store_true", help="a server of its own, which outlives this kernel; attached to")
        parser.set_defaults(topology=_NOTEBOOK_TOPOLOGY)
    return parser


def add_ps(commands: Commands, notebook: bool = False) -> Parser:
    """``ps``."""
    parser = _add_command(commands, "ps", "", "List the running engines of this user.")
    if notebook:
        _add_output(parser, None, "the list")
    return parser


def add_stop(commands: Commands, notebook: bool = False) -> Parser:
    """``stop [TARGET]``: ``namespace.target``, ``namespace.all``."""
    parser = _add_command(commands, "stop", "[TARGET | --all]", "Stop an engine: its front, or the process itself.")
    named = "a session's variable (default: lab), or a pid as 'ps' shows it" if notebook else "a pid as 'mqlab ps' shows it"
    parser.add_argument("target", metavar="TARGET", nargs="?", default=None, help=named)
    parser.add_argument("--all", action="store_true", help="every engine of this user on this machine, other kernels' and terminals' too")
    return parser


def add_fetch(commands: Commands, notebook: bool = False) -> Parser:
    """``fetch NAME``: ``namespace.name``."""
    del notebook
    parser = _add_command(commands, "fetch", "NAME", "Fetch a model and convert it, once.")
    parser.add_argument("name", metavar="NAME", help="a known name, for example smollm2-135m")
    return parser


def add_bench(commands: Commands, notebook: bool = False) -> Parser:
    """``bench NAME``: read with ``throughput_configs`` …, ``agreement_configs`` for calibration, ``load_configs`` for serve."""
    bench = _add_command(commands, "bench", "BENCHMARK [options]", "Measure an engine.")
    benches = bench.add_subparsers(title="benchmarks", dest="bench", metavar="BENCHMARK", required=True, prog=bench.prog)
    throughput = _add_command(benches, "throughput", "[options]", "Tokens per second of an engine that has all its requests at once.")
    add_config(throughput, ThroughputConfig, topology=_TOPOLOGY)
    add_config(throughput, DatasetConfig)
    latency = _add_command(benches, "latency", "[options]", "Seconds that one fixed batch takes.")
    add_config(latency, LatencyConfig, topology=_TOPOLOGY)
    for parser in (throughput, latency):
        _add_engine(parser)
        add_config(parser, Timing)
    sampler = _add_command(benches, "sampler", "[options]", "Microseconds that choosing tokens takes, by what requests ask for.")
    add_config(sampler, SamplerConfig)
    scheduler = _add_command(benches, "scheduler", "[options]", "Microseconds of a step beside the model: scheduling, output processing.")
    add_config(scheduler, SchedulerConfig)
    _add_engine(scheduler)
    codecs = _add_command(benches, "codecs", "[options]", "Bytes and microseconds of an engine step's message, by codec and output.")
    add_config(codecs, CodecsConfig)
    frontend = _add_command(benches, "frontend", "[options]", "Microseconds of CPU that the HTTP front takes for each token it streams.")
    add_config(frontend, FrontendConfig, topology=_TOPOLOGY)
    capacity = _add_command(benches, "capacity", "[options]", "How much load a simulated device carries, in virtual time.")
    add_config(capacity, CapacityConfig)
    add_config(capacity, DatasetConfig)
    _add_engine(capacity)
    calibration = _add_command(benches, "calibration", "[options]", "Whether a calibrated device keeps the real engine's time.")
    add_config(calibration, AgreementConfig, topology=_TOPOLOGY)
    _add_engine(calibration)
    add_config(calibration, Timing)
    device = _add_command(benches, "device", "[options]", "What a GPU reaches, and what of that kernels, decode steps and engines reach.")
    add_config(device, DeviceConfig)
    seeds = _add_seeds(benches)
    serve = _add_command(benches, "serve", "[options]", "Latency and throughput of a running OpenAI-compatible server under load.")
    add_config(serve, LoadConfig)
    add_config(serve, DatasetConfig)
    if notebook:
        serve.add_argument("--session", metavar="NAME", default=None, help="the session to load, instead of a server elsewhere")
        for parser in (throughput, latency, sampler, scheduler, codecs, frontend, capacity, calibration, device, serve, seeds):
            _add_output(parser, "result", "the result")
    return bench


def _add_seeds(benches: Commands) -> Parser:
    what = "The measurements of the documents that the layouts come from, made again, beside what was published."
    parser = _add_command(benches, "seeds", "[NAME …] [options]", what)
    parser.add_argument("names", metavar="NAME", nargs="*", help="experiments; all of them unless named, about 15 minutes")
    add_config(parser, SeedsConfig)
    return parser


def add_compare(commands: Commands, notebook: bool = False) -> Parser:
    """``compare MODEL``: read its namespace with ``compare_configs``."""
    parser = _add_command(
        commands, "compare", "MODEL [options]", "Measure what one setting changes: by default the layout between client and engine."
    )
    _add_engine(parser, positional=("model",))
    add_config(parser, CompareConfig, topology=_TOPOLOGY)
    add_config(parser, Timing)
    if notebook:
        _add_output(parser, "comparison", "the comparison")
    return parser


def add_check(commands: Commands, notebook: bool = False) -> Parser:
    """``check-topology FILE.py``: read its namespace with ``check_configs``."""
    what = "Hold a layout of your own to the contract that every layout of mqlab keeps."
    parser = _add_command(commands, "check-topology", "FILE.py [options]", what)
    add_config(parser, CheckConfig, positional=("topology",))
    if notebook:
        _add_output(parser, "verdict", "what was found")
    return parser


def add_calibrate(commands: Commands, notebook: bool = False) -> Parser:
    """``calibrate``: read its namespace with ``calibrate_configs``."""
    parser = _add_command(commands, "calibrate", "[options]", "This machine as a simulated device: sim:MODEL@NAME then runs at its speed.")
    add_config(parser, CalibrateConfig)
    _add_engine(parser)
    if notebook:
        _add_output(parser, "calibration", "the calibration")
    return parser


def add_profile(commands: Commands, notebook: bool = False) -> Parser:
    """``profile [TARGET]``: read its options with ``read_config(namespace, ProfileConfig)``."""
    parser = _add_command(commands, "profile", "[TARGET] [options]", "Sample the stacks of an engine and its front while they work.")
    _add_target(parser, notebook)
    add_config(parser, ProfileConfig)
    if notebook:
        _add_output(parser, "capture", "the capture")
    return parser


def add_metrics(commands: Commands, notebook: bool = False) -> Parser:
    """``metrics [TARGET]``."""
    figures = "What an engine does right now: throughput, latencies, queues, CPU."
    page = "The figures of a running server, as its /metrics page has them for Prometheus."
    parser = _add_command(commands, "metrics", "[TARGET]", figures if notebook else page)
    _add_target(parser, notebook)
    if notebook:
        _add_output(parser, None, "the figures")
    return parser


def add_trace(commands: Commands, notebook: bool = False) -> Parser:
    """``trace [TARGET]``: ``namespace.save`` and ``namespace.export``."""
    parser = _add_command(commands, "trace", "[TARGET] [options]", "What the probes recorded of a run, so far.")
    _add_target(parser, notebook, or_else=", or a recording or trace on disk")
    parser.add_argument("--save", metavar="PATH", default=None, help="keep it there")
    parser.add_argument("--export", metavar="FILE", default=None, help="write a Chrome trace (JSON), for ui.perfetto.dev")
    if notebook:
        _add_output(parser, "trace", "the trace")
    return parser


def add_attach(commands: Commands, notebook: bool = True) -> Parser:
    """``attach [TARGET]``."""
    del notebook
    parser = _add_command(
        commands, "attach", "[TARGET] [options]", "A session over an engine that runs already, in a terminal or another kernel."
    )
    parser.add_argument("target", metavar="TARGET", nargs="?", default=None, help="a pid as 'ps' shows it; not needed where only one runs")
    _add_output(parser, "lab", "the session")
    return parser


def add_open(commands: Commands, notebook: bool = True) -> Parser:
    """``open PATH``."""
    del notebook
    parser = _add_command(commands, "open", "PATH [options]", "Show a saved trace, capture, speedscope file, or result of a bench again.")
    parser.add_argument("path", metavar="PATH", help="file or folder")
    _add_output(parser, "opened", "what it holds")
    return parser


def serve_configs(namespace: argparse.Namespace) -> tuple[EngineConfig, ServerConfig, Timing]:
    """The configs of a ``serve`` command.

    Raises:
        ConfigError: a value is out of its range.
    """
    server = read_config(namespace, ServerConfig)
    if namespace.disable_frontend_multiprocessing:
        given = server.topology not in (_NOTEBOOK_TOPOLOGY, ServerConfig.topology, "aio")
        check(not given, server, "topology", "cannot be combined with --disable-frontend-multiprocessing, which means --topology aio")
        server = replace(server, topology="aio")
    return read_config(namespace, EngineConfig), server, read_config(namespace, Timing)


def serve_line(engine: EngineConfig, server: ServerConfig, timing: Timing) -> list[str]:
    """The arguments of a ``serve`` command that has these configs."""
    given = [as_arguments(config, one) for config in (engine, server, timing) for one in fields(config) if one.name != "model"]
    return ["serve", engine.model, *chain.from_iterable(given)]


def throughput_configs(namespace: argparse.Namespace) -> tuple[EngineConfig, ThroughputConfig, DatasetConfig, Timing]:
    """The configs of a ``bench throughput`` command.

    Raises:
        ConfigError: a value is out of its range.
    """
    workload, dataset = read_config(namespace, ThroughputConfig), read_config(namespace, DatasetConfig)
    return read_config(namespace, EngineConfig), workload, dataset, read_config(namespace, Timing)


def latency_configs(namespace: argparse.Namespace) -> tuple[EngineConfig, LatencyConfig, Timing]:
    """The configs of a ``bench latency`` command; raises ConfigError for a value out of its range."""
    return read_config(namespace, EngineConfig), read_config(namespace, LatencyConfig), read_config(namespace, Timing)


def scheduler_configs(namespace: argparse.Namespace) -> tuple[EngineConfig, SchedulerConfig]:
    """The configs of a ``bench scheduler`` command; raises ConfigError for a value out of its range."""
    return read_config(namespace, EngineConfig), read_config(namespace, SchedulerConfig)


def capacity_configs(namespace: argparse.Namespace) -> tuple[EngineConfig, CapacityConfig, DatasetConfig]:
    """The configs of a ``bench capacity`` command; raises ConfigError for a value out of its range."""
    return read_config(namespace, EngineConfig), read_config(namespace, CapacityConfig), read_config(namespace, DatasetConfig)


def codecs_configs(namespace: argparse.Namespace) -> tuple[CodecsConfig]:
    """The config of a ``bench codecs`` command; raises ConfigError for a value out of its range."""
    return (read_config(namespace, CodecsConfig),)


def frontend_configs(namespace: argparse.Namespace) -> tuple[FrontendConfig]:
    """The config of a ``bench frontend`` command; raises ConfigError for a value out of its range."""
    return (read_config(namespace, FrontendConfig),)


def device_configs(namespace: argparse.Namespace) -> tuple[DeviceConfig]:
    """The config of a ``bench device`` command; raises ConfigError for a value out of its range."""
    return (read_config(namespace, DeviceConfig),)


def sampler_configs(namespace: argparse.Namespace) -> tuple[SamplerConfig]:
    """The config of a ``bench sampler`` command; raises ConfigError for a value out of its range."""
    return (read_config(namespace, SamplerConfig),)


def seeds_configs(namespace: argparse.Namespace) -> tuple[list[str], SeedsConfig]:
    """The names and the config of a ``bench seeds`` command; raises ConfigError for a value out of its range."""
    return namespace.names, read_config(namespace, SeedsConfig)


def load_configs(namespace: argparse.Namespace) -> tuple[LoadConfig, DatasetConfig]:
    """The configs of a ``bench serve`` command; raises ConfigError for a value out of its range."""
    return read_config(namespace, LoadConfig), read_config(namespace, DatasetConfig)


def agreement_configs(namespace: argparse.Namespace) -> tuple[EngineConfig, AgreementConfig, Timing]:
    """The configs of a ``bench calibration`` command; raises ConfigError for a value out of its range."""
    # --device is the simulated one here; the real engine is where it would be anyway.
    engine = argparse.Namespace(**{name: value for name, value in vars(namespace).items() if name != "device"})
    return read_config(engine, EngineConfig), read_config(namespace, AgreementConfig), read_config(namespace, Timing)


def calibrate_configs(namespace: argparse.Namespace) -> tuple[EngineConfig, CalibrateConfig]:
    """The configs of a ``calibrate`` command; raises ConfigError for a value out of its range."""
    return read_config(namespace, EngineConfig), read_config(namespace, CalibrateConfig)


def compare_configs(namespace: argparse.Namespace) -> tuple[EngineConfig, CompareConfig, Timing]:
    """The configs of a ``compare`` command.

    Raises:
        ConfigError: a value is out of its range.
    """
    return read_config(namespace, EngineConfig), read_config(namespace, CompareConfig), read_config(namespace, Timing)


def check_configs(namespace: argparse.Namespace) -> tuple[CheckConfig]:
    """The config of a ``check-topology`` command; raises ConfigError for a value out of its range."""
    return (read_config(namespace, CheckConfig),)


def _add_engine(parser: Parser, *, positional: Sequence[str] = ()) -> None:
    """The engine's settings, and what becomes of other engines' flags."""
    add_config(parser, EngineConfig, positional=positional)
    parser.foreign = ENGINE_FLAGS


def _add_command(commands: Commands, name: str, usage: str, description: str) -> Parser:
    return commands.add_parser(name, help=description, description=description, usage=f"%(prog)s {usage}")


def _add_output(parser: Parser, default: str | None, what: str) -> None:
    by_default = f" (default: {default})" if default else ""
    parser.add_argument("-o", "--variable", metavar="NAME", default=default, help=f"the variable that holds {what}{by_default}")
    parser.add_argument("--quiet", action="store_true", help="show nothing")


def _add_target(parser: Parser, notebook: bool, or_else: str = "") -> None:
    which = "a session's variable (default: lab), or a pid as 'ps' shows it" if notebook else "a pid as 'mqlab ps' shows it"
    only = "" if notebook else "; not needed where only one runs"
    parser.add_argument("target", metavar="TARGET", nargs="?", default=None, help=which + or_else + only)
