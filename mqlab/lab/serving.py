"""From the arguments of ``%mqlab serve`` to a session."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import threading
import time
from dataclasses import fields
from datetime import datetime
from hashlib import sha256
from pathlib import Path
from typing import Any

from mqlab.arguments import serve_configs, serve_line
from mqlab.config import ServerConfig, Settings, environment_of_server
from mqlab.errors import ConfigError, EngineStartError
from mqlab.lab.registry import Served
from mqlab.lab.session import Session
from mqlab.models.resolve import resolve
from mqlab.topologies import layout_digest, layout_options
from mqlab.wire.process import log_tail
from mqlab.wire.registry import Entry, Registry
from mqlab.wire.spawn import spawn

_POLL_S = 0.05
_KEPT_LOGS = 20
_OF_A_SESSION = ("topology", "codec", "record")


def served_of(arguments: argparse.Namespace) -> Served:
    """What is to be served; a wrong model or setting must not cost the session that runs.

    Raises:
        ConfigError, ModelError
    """
    config, server, timing = serve_configs(arguments)
    if not arguments.detach:
        _check_no_port(server)
    resolve(config.model, Settings.read().cache_dir, load_format=config.load_format)
    layout_options(server.topology)
    return Served(config, server, timing, arguments.detach, layout_digest(server.topology))


def start(served: Served, name: str) -> tuple[Session, str]:
    """A session of this kernel, or one attached to a server that outlives it; and how it came to be, in words.

    Raises:
        EngineStartError: it did not start.
    """
    if served.detach:
        return _detached(served, name)
    begin = time.monotonic()
    config, server = served.config, served.server
    session = Session.of(config, server.topology, codec=server.codec, timing=served.timing, name=name, record=server.record)
    return session, f"ready after {time.monotonic() - begin:.1f} s"


def _detached(served: Served, name: str) -> tuple[Session, str]:
    begin = time.monotonic()
    entry = _find_detached(served)
    if entry is not None:
        note = f"already running, server pid {entry.pid}, {entry.url}, started {entry.age_s:.0f} s ago: reused"
    else:
        entry = _start_detached(served)
        note = f"server pid {entry.pid}, {entry.url}, ready after {time.monotonic() - begin:.1f} s; %mqlab stop {entry.pid} ends it"
    return Session.attach(entry.pid, name=name), note


def _check_no_port(server: ServerConfig) -> None:
    """A session has no server yet: what only a server has would be forgotten."""
    plain = ServerConfig()
    for one in fields(server):
        if one.name not in _OF_A_SESSION and getattr(server, one.name) != getattr(plain, one.name):
            flag = "--" + one.name.replace("_", "-")
            raise ConfigError(
                f"{flag}: a notebook session opens its HTTP port when asked for (.url), on a free one; use --detach, or leave {flag} out"
            )


def _folder() -> Path:
    return Settings.read().cache_dir / "servers"


def _line(served: Served) -> list[str]:
    return serve_line(served.config, served.server, served.timing)


def _find_detached(served: Served) -> Entry | None:
    """A server that some kernel of this user started with the very same command, and that still runs."""
    for entry in Registry().entries():
        try:
            note = json.loads((_folder() / f"{entry.pid}.json").read_text(encoding="utf-8"))
        except (OSError, ValueError):
            continue
        if note == _note(entry, served):
            return entry
    return None


def _start_detached(served: Served) -> Entry:
    """Start ``mqlab serve`` in a session of its own; returns once it can be attached to."""
    folder = _folder()
    folder.mkdir(parents=True, exist_ok=True)
    log = folder / f"{datetime.now():%Y%m%d-%H%M%S-%f}.log"
    with log.open("wb") as sink:
        command = [sys.executable, "-P", "-m", "mqlab", *_line(served)]
        keys = environment_of_server(served.server.api_key)
        child = spawn(command, stdin=subprocess.DEVNULL, stdout=sink, stderr=sink, start_new_session=True, env=keys)
        try:
            entry = _wait_ready(child, log, served.timing.start_timeout)
        except BaseException:
            child.terminate()
            child.wait()
            raise
    threading.Thread(target=child.wait, name=f"mqlab-server-{child.pid}", daemon=True).start()  # whose child ends is to bury it
    _tidy(folder)
    (folder / f"{child.pid}.json").write_text(json.dumps(_note(entry, served)), encoding="utf-8")
    return entry


def _note(entry: Entry, served: Served) -> dict[str, Any]:
    """What a server is known again by; its keys by a digest, salted with a moment."""
    keys = sha256(repr((entry.started, served.server.api_key)).encode()).hexdigest()
    return {"started": entry.started, "line": _line(served), "layout": served.layout, "keys": keys}


def _tidy(folder: Path) -> None:
    """Forget servers that ended, and all but the newest logs."""
    running = {str(entry.pid) for entry in Registry().entries()}
    ended = [path for path in folder.glob("*.json") if path.stem not in running]
    for path in [*ended, *sorted(folder.glob("*.log"))[:-_KEPT_LOGS]]:
        path.unlink(missing_ok=True)


def _wait_ready(child: subprocess.Popen[bytes], log: Path, timeout: float) -> Entry:
    deadline = time.monotonic() + timeout
    while (entry := Registry().find(str(child.pid))) is None:
        if child.poll() is not None:
            raise EngineStartError(f"the server ended with status {child.returncode}; its log is {log}", child.returncode, log_tail(log))
        if time.monotonic() > deadline:
            raise EngineStartError(
                f"the server was not ready within {timeout:g} s (start_timeout); its log is {log}", log_tail=log_tail(log)
            )
        time.sleep(_POLL_S)
    return entry
