"""From the arguments of ``%mqlab serve`` to a session."""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from datetime import datetime
from pathlib import Path

from mqlab.arguments import serve_configs, serve_line
from mqlab.config import ServerConfig, Settings
from mqlab.errors import ConfigError, EngineStartError
from mqlab.lab.registry import Served
from mqlab.lab.session import Session
from mqlab.models.resolve import resolve
from mqlab.wire.registry import Registry

_POLL_S = 0.05
_TAIL_BYTES = 4000


def served_of(arguments: argparse.Namespace) -> Served:
    """What is to be served; a wrong model or setting must not cost the session that runs.

    Raises:
        ConfigError, ModelError
    """
    config, server, timing = serve_configs(arguments)
    if not arguments.detach:
        _check_no_port(server)
    resolve(config.model, Settings.read().cache_dir)
    return Served(config, server, timing, arguments.record, arguments.detach)


def start(served: Served, name: str) -> Session:
    """A session of this kernel, or one attached to a server that was started to outlive it.

    Raises:
        EngineStartError: it did not start.
    """
    if served.detach:
        return Session.attach(_detached(served), name=name)
    server = served.server
    return Session.of(served.config, server.topology, codec=server.codec, timing=served.timing, name=name, record=served.record)


def _check_no_port(server: ServerConfig) -> None:
    plain = ServerConfig()
    for field in ("host", "port", "drain_timeout"):
        if getattr(server, field) != getattr(plain, field):
            flag = "--" + field.replace("_", "-")
            raise ConfigError(
                f"{flag}: a notebook session opens its HTTP port when asked for (.url), on a free one; use --detach, or leave {flag} out"
            )


def _detached(served: Served) -> int:
    """Start ``mqlab serve`` in a session of its own; its pid, once it can be attached to."""
    folder = Settings.read().cache_dir / "servers"
    folder.mkdir(parents=True, exist_ok=True)
    log = folder / f"{datetime.now():%Y%m%d-%H%M%S-%f}.log"
    command = [sys.executable, "-P", "-m", "mqlab", *serve_line(served.config, served.server, served.timing)]
    with log.open("wb") as sink:
        child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=sink, stderr=sink, start_new_session=True)
    try:
        _wait_ready(child, log, served.timing.start_timeout)
    except BaseException:
        child.terminate()
        child.wait()
        raise
    return child.pid


def _wait_ready(child: subprocess.Popen[bytes], log: Path, timeout: float) -> None:
    deadline = time.monotonic() + timeout
    while Registry().find(str(child.pid)) is None:
        if child.poll() is not None:
            raise EngineStartError(f"the server ended with status {child.returncode}; its log is {log}", child.returncode, _tail(log))
        if time.monotonic() > deadline:
            raise EngineStartError(f"the server was not ready within {timeout:g} s (start_timeout); its log is {log}", log_tail=_tail(log))
        time.sleep(_POLL_S)


def _tail(log: Path) -> str:
    return log.read_bytes()[-_TAIL_BYTES:].decode(errors="replace")
