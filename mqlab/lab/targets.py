"""What a command of the notebook is about: a session by its variable's name, or an engine of somebody else by its pid."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from mqlab.errors import ConfigError
from mqlab.lab.registry import SESSIONS
from mqlab.lab.session import Session
from mqlab.probes.running import find
from mqlab.record.trace import Trace

DEFAULT = "lab"


@contextlib.contextmanager
def session_of(target: str | None) -> Iterator[Session]:
    """A session of this kernel, or one that is attached while the block lasts.

    Raises:
        ConfigError: neither a session nor an engine of that name or pid.
    """
    live = SESSIONS.live()
    name = target or DEFAULT
    if name in live:
        yield live[name]
    elif not _is_process(name):
        raise no_session(name)
    else:
        session = Session.attach(name, name=f"pid {name}")
        try:
            yield session
        finally:
            session.stop()


def trace_of(target: str | None) -> Trace:
    """What was recorded: of a session, of a running engine, or on disk.

    Raises:
        ConfigError: no such session or engine, or it records nothing. TraceError: the path holds no recording.
    """
    live = SESSIONS.live()
    name = target or DEFAULT
    if name in live:
        return live[name].trace()
    if not _is_process(name):
        if target is None or not Path(name).exists():
            raise no_session(name)
        return Trace.load(name)
    entry = find(name)
    if entry.recording is None:
        raise ConfigError(f"engine {entry.model!r} (pid {entry.pid}) records nothing: it was started with --no-record")
    return Trace.of(entry.recording)


def no_session(name: str) -> ConfigError:
    """There is no session of that name; says which there are."""
    return ConfigError(f"no session {name!r} runs in this kernel; there is {', '.join(SESSIONS.live()) or 'none'}")


def _is_process(name: str) -> bool:
    return name.isdigit() or ("/" in name and name.startswith("http"))
