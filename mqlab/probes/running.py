"""Running engines as somebody else sees them: which there are, their processes, what they record."""

from __future__ import annotations

import http.client
import socket
import ssl
from collections.abc import Sequence
from contextlib import closing, suppress
from datetime import timedelta
from pathlib import Path

import msgspec
import psutil

from mqlab.errors import ConfigError
from mqlab.probes.recording import Recording
from mqlab.record.trace import Trace
from mqlab.wire.native import LAUNCHER, FrontInfo
from mqlab.wire.process import RANK
from mqlab.wire.ranks import with_ranks
from mqlab.wire.registry import Entry, Registry

_ASK_TIMEOUT_S = 1.0
_METRICS_TIMEOUT_S = 10.0


def find(target: str | None) -> Entry:
    """The running engine that a pid, URL or socket names; the only one there is, for None.

    Raises:
        ConfigError: there is none, or more than one to choose from.
    """
    registry = Registry()
    if target is None:
        return only(registry.entries())
    entry = registry.find(target)
    if entry is None:
        raise ConfigError(f"no engine {target!r} is running; {_those(registry.entries())}")
    return entry


def only(entries: Sequence[Entry]) -> Entry:
    """The one that there is.

    Raises:
        ConfigError: there is none, or more than one to choose from.
    """
    if len(entries) == 1:
        return entries[0]
    raise ConfigError(f"which one? {_those(entries)}" if entries else _those(entries))


def pids(entry: Entry) -> dict[str, int]:
    """The engine's processes by role, as FrontInfo has them, and its ranks. A front that hangs is not waited for.

    Raises:
        ConfigError: it has just ended.
    """
    try:
        return with_ranks(_recorded(entry) or _told(entry) or _guessed(entry))
    except psutil.NoSuchProcess:
        raise ConfigError(f"engine {entry.model!r} (pid {entry.pid}) has just ended") from None


def trace_of(entry: Entry) -> Trace:
    """What an engine recorded so far.

    Raises:
        ConfigError: it records nothing. TraceError: its recording cannot be read.
    """
    if entry.recording is None:
        raise ConfigError(f"engine {entry.model!r} (pid {entry.pid}) records nothing: it was started with --no-record")
    return Trace.of(entry.recording)


def metrics_of(entry: Entry) -> str:
    """What its server says at ``/metrics``, in Prometheus' format.

    Raises:
        ConfigError: it has no server, or that one does not answer.
    """
    if entry.url is None:
        what = f"engine {entry.model!r} (pid {entry.pid}) has no HTTP server"
        raise ConfigError(f"{what}: it is the session of a notebook, which opens one with .url and shows figures with %mqlab metrics")
    try:
        with closing(_connection(entry.url)) as server:
            server.request("GET", "/metrics")
            return server.getresponse().read().decode()
    except (OSError, http.client.HTTPException) as error:
        raise ConfigError(f"{entry.url}/metrics does not answer ({error}); 'mqlab ps' shows what runs") from None


def table(entries: Sequence[Entry]) -> str:
    """One line each: pid, age, model, layout, how it is reached, who started it."""
    return _aligned([("PID", "UP", "MODEL", "TOPOLOGY", "URL", "STARTED BY"), *map(_row, entries)])


def ranks_table(entries: Sequence[Entry]) -> str:
    """The processes that share a model, one line each, of all engines that have several: pid, role, CPU time, memory; empty where none
    has."""
    rows = [row for entry in entries for row in _ranks_of(entry)]
    return _aligned([("PID", "ROLE", "CPU TIME", "MEMORY", "MODEL"), *rows]) if rows else ""


def listing(entries: Sequence[Entry]) -> str:
    """Both tables, the second one where there is one."""
    return "\n\n".join(filter(None, (table(entries), ranks_table(entries))))


def _aligned(rows: Sequence[tuple[str, ...]]) -> str:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows)


def _those(entries: Sequence[Entry]) -> str:
    return f"there are:\n{table(entries)}" if entries else "no other engine of this user runs; 'mqlab serve MODEL' starts one"


def _row(entry: Entry) -> tuple[str, ...]:
    owner = "itself" if entry.owner_pid == entry.pid else f"pid {entry.owner_pid}"
    up = str(timedelta(seconds=round(entry.age_s)))
    return str(entry.pid), up, entry.model, entry.topology, entry.url or "-", owner


def _ranks_of(entry: Entry) -> list[tuple[str, ...]]:
    try:
        found = pids(entry)
    except ConfigError:
        return []
    ranks = {role: pid for role, pid in found.items() if role.startswith(RANK)}
    those = {"engine": found["engine"], **ranks} if ranks else {}
    return [row for role, pid in those.items() if (row := _used(role, pid, entry.model))]


def _used(role: str, pid: int, model: str) -> tuple[str, ...]:
    """A line of a process; nothing where it is gone."""
    with suppress(psutil.Error):
        process = psutil.Process(pid)
        times = process.cpu_times()
        return str(pid), role, f"{times.user + times.system:.1f} s", f"{process.memory_info().rss / 2**20:.0f} MiB", model
    return ()


def _recorded(entry: Entry) -> dict[str, int]:
    if entry.recording is None:
        return {}
    with closing(Recording(Path(entry.recording))) as recording:
        writers = recording.processes()
    found = {writer.rpartition("-")[0]: pid for writer, pid in writers.items() if psutil.pid_exists(pid)}
    found.pop("observer", None)
    return found if found.keys() & {"front", LAUNCHER} and "engine" in found else {}


def _told(entry: Entry) -> dict[str, int]:
    """What the front says; nothing where it does not answer."""
    if entry.socket is None:
        return {}
    try:
        with closing(_UnixConnection(entry.socket, _ASK_TIMEOUT_S)) as front:
            front.request("GET", "/info")
            return msgspec.json.decode(front.getresponse().read(), type=FrontInfo).pids
    except (OSError, http.client.HTTPException, msgspec.MsgspecError):
        return {}


def _guessed(entry: Entry) -> dict[str, int]:
    """By who started whom."""
    process = psutil.Process(entry.pid)
    if entry.role == "session" and process.ppid() == entry.owner_pid:
        return {"front": entry.owner_pid, "engine": entry.pid}
    below = [(command[-1], child.pid) for child in process.children() if "mqlab.wire.boot" in (command := child.cmdline())]
    own = LAUNCHER if any(role.startswith("front-") for role, _ in below) else "front"
    return {own: entry.pid, "engine": entry.pid, **dict(below)}


def _connection(url: str) -> http.client.HTTPConnection:
    """To a server of this machine that the registry knows, whoever has signed its certificate."""
    scheme, _, place = url.partition(":")
    if scheme == "unix":
        return _UnixConnection(place, _METRICS_TIMEOUT_S)
    address = place.removeprefix("//")
    if scheme == "http":
        return http.client.HTTPConnection(address, timeout=_METRICS_TIMEOUT_S)
    unverified = ssl.create_default_context()
    unverified.check_hostname, unverified.verify_mode = False, ssl.CERT_NONE
    return http.client.HTTPSConnection(address, timeout=_METRICS_TIMEOUT_S, context=unverified)


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: str, timeout: float) -> None:
        super().__init__("front", timeout=timeout)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)
