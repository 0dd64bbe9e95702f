"""``mqlab bench frontend``: what the HTTP front costs for each token that it streams.

An echo core answers at once, behind the layout that is asked for; chats are streamed over HTTP to clients in processes of their own, and a
chunk is counted for each token. The figure is the CPU time, user and system, of all processes of the front, by the tokens that they
streamed; requests, their tokenising and their connections are in it. Beside it, in turns: the server's own floor, and vLLM's server.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from urllib.parse import urlsplit

import psutil
from msgspec.structs import replace

from mqlab.bars import progress_bar
from mqlab.bench.frontend.driver import connections_of_a_process, drive
from mqlab.bench.frontend.job import Job
from mqlab.bench.frontend.options import FrontendConfig, Load
from mqlab.bench.frontend.peer import MAX_STREAMS, vllm_server
from mqlab.bench.frontend.probe import MARK, Answer, model_of, probe, request_of
from mqlab.bench.frontend.result import FLOOR, PEER, SERVER, FrontendResult, Memory, Round, Row, round_of
from mqlab.bench.frontend.targets import Target, floor_server, mqlab_server, running_server
from mqlab.bench.local import folder_of
from mqlab.bench.output import told
from mqlab.config import EngineConfig
from mqlab.errors import ConfigError
from mqlab.record.metadata import environment

_WARM_UP_TOKENS = 16
_TIMEOUT_S = 300.0


def main(config: FrontendConfig) -> int:
    """``frontend``, with its progress and result printed and, where asked for, the result written to a file.

    Returns:
        the exit status: 0, 3 where a stream was lost or tokens came several at once.

    Raises:
        as ``frontend``.
    """
    result = told(lambda: frontend(config), config.output_json, config.notes)
    return 3 if result.void else 0


def frontend(config: FrontendConfig) -> FrontendResult:
    """Run the benchmark.

    Raises:
        ConfigError: more streams than this user may have connections. BenchError: a server did not start, or gives no stream.
        ModelError.
    """
    for load in config.loads:
        _check_fits(load, config)
    rows: list[Row] = []
    with ExitStack() as stack:
        peer = stack.enter_context(_peer(config))
        for load in config.loads:
            rows += _measure(config, load, peer)
    return FrontendResult(rows=tuple(rows), workload=config.as_record(), notes=config.notes, meta=environment())


@contextmanager
def _peer(config: FrontendConfig) -> Iterator[dict[str, Target]]:
    if config.peer_python is None:
        yield {}
        return
    folder = folder_of(EngineConfig(model=config.model))
    if folder is None:
        raise ConfigError(f"--peer-python needs a model with a tokenizer; --model={config.model!r} has none")
    with vllm_server(config.peer_python, folder) as target:
        yield {PEER: target}


def _check_fits(load: Load, config: FrontendConfig) -> None:
    """Raises ConfigError where a front could not hold all connections that it gets."""
    most = connections_of_a_process()
    if load.streams > most * (len(config.pid) or config.api_server_count):
        files = f"a front process holds {most:,} connections here (ulimit -n)"
        raise ConfigError(f"{load.streams:,} streams are too many: {files}; raise that, or --api-server-count")


def _measure(config: FrontendConfig, load: Load, peer: Mapping[str, Target]) -> list[Row]:
    """A row for each server."""
    with ExitStack() as stack:
        own = _Arm(SERVER, running_server(config) if config.url is not None else stack.enter_context(mqlab_server(config, load)), load)
        arms = [own, *_beside(config, load, own.answer, peer, stack)]
        for arm in arms:
            arm.warm_up()
        for number in progress_bar(str(load), iterable=range(1 if load.held else config.rounds), unit="round"):
            # Each round begins with another, so that none always follows the same.
            for arm in arms[number % len(arms) :] + arms[: number % len(arms)]:
                arm.run()
        return [arm.row for arm in arms]


def _beside(config: FrontendConfig, load: Load, answer: Answer, peer: Mapping[str, Target], stack: ExitStack) -> list[_Arm]:
    """The servers that a load is put on as well."""
    arms = []
    if config.floor and not load.held:
        arms.append(_Arm(FLOOR, stack.enter_context(floor_server(answer, load)), load, answer))
    if load.streams <= MAX_STREAMS and not load.step_s:
        shorter = replace(load, tokens=config.peer_tokens)
        arms += [_Arm(name, target, shorter) for name, target in peer.items()]
    return arms


class _Arm:
    """One server under one load.

    Args:
        answer: what it is known to answer; it is asked otherwise.
    """

    def __init__(self, name: str, target: Target, load: Load, answer: Answer | None = None) -> None:
        self._name = name
        self._target = target
        self._load = load
        self._model = name if answer else model_of(target.url)
        self.answer = answer or probe(target.url, self._model)
        self._rounds: list[Round] = []
        self._memory: Memory | None = None

    @property
    def row(self) -> Row:
        """What was seen."""
        return Row(self._name, self._load, tuple(self._rounds), self._memory)

    def warm_up(self) -> None:
        """A short run that does not count; connections that are held open must be the first."""
        if not self._load.held:
            drive(self._job(min(_WARM_UP_TOKENS, self._load.tokens)), {})

    def run(self) -> None:
        """One round."""
        target = self._target
        before, written = _sizes(target) if self._load.held else {}, _writes(target)
        driven = drive(self._job(self._load.tokens), target.processes, lambda: self._weigh(before))
        self._rounds.append(round_of(driven, self._load, _writes(target) - written, list(target.front), list(target.engine)))

    def _weigh(self, before: dict[str, int]) -> None:
        """How much larger the front is than before, now that all connections are open."""
        if before:
            now = _sizes(self._target)
            more = {name: (now[name] - before[name]) / self._load.streams for name in now}
            self._memory = Memory(rss=more["rss"], pss=more["pss"], total_mb=now["pss"] / 1e6)

    def _job(self, tokens: int) -> Job:
        address = urlsplit(self._target.url)
        request = request_of(self._target.url, self._model, tokens)
        host, port = address.hostname or "", address.port or 80
        return Job(host, port, request, self._load.streams, MARK, self.answer.extra, timeout_s=_TIMEOUT_S)


def _writes(target: Target) -> int:
    """System calls so far with which a front wrote; 0 where the system does not tell (Linux does, of processes of the same user)."""
    try:
        return sum(psutil.Process(pid).io_counters().write_count for pid in target.front_pids)
    except (psutil.AccessDenied, AttributeError):
        return 0


def _sizes(target: Target) -> dict[str, int]:
    """Bytes of all processes of a front."""
    infos = [psutil.Process(pid).memory_full_info() for pid in target.front_pids]
    return {name: sum(getattr(info, name, 0) for info in infos) for name in ("rss", "pss")}
