"""What a command of the notebook is about: a session by its variable's name, or an engine of somebody else by its pid."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from mqlab.errors import ConfigError
from mqlab.lab.registry import SESSIONS
from mqlab.lab.session import Session
from mqlab.probes import running
from mqlab.record.trace import Trace
from mqlab.wire.registry import Entry, Registry

DEFAULT = "lab"


@contextlib.contextmanager
def session_of(target: str | None) -> Iterator[Session]:
    """A session of this kernel, by its name or as an engine, or one that is attached while the block lasts.

    Raises:
        ConfigError: neither a session nor an engine of that name, pid or URL.
    """
    name = target or DEFAULT
    known = own_session(name)
    if known is not None:
        yield known
        return
    if not is_engine(name):
        raise no_session(name)
    session = Session.attach(name, name=f"pid {name}" if name.isdigit() else name)
    try:
        yield session
    finally:
        session.stop()


def own_session(name: str) -> Session | None:
    """The live session of that name, or whose engine has that pid or URL."""
    live = SESSIONS.live()
    return live.get(name) or next((session for session in live.values() if name in session.addresses), None)


def foreign_engine(target: str | None) -> Entry:
    """The engine that a pid or URL names, else the only one that is no session of this kernel.

    Raises:
        ConfigError: there is none, or more than one, or it is a session of this kernel.
    """
    if target is None:
        others = [entry for entry in Registry().entries() if entry.owner_pid != os.getpid()]
        return running.only(others)
    entry = running.find(target)
    if entry.owner_pid == os.getpid():
        names = [name for name, session in SESSIONS.live().items() if str(entry.pid) in session.addresses]
        raise ConfigError(f"engine {target} is a session of this kernel already: {', '.join(names) or 'without a name'}")
    return entry


def trace_of(target: str | None) -> Trace:
    """What was recorded: of a session, stopped ones too, of a running engine, or on disk.

    Raises:
        ConfigError: no such session or engine, or it records nothing. TraceError: the path holds no recording.
    """
    name = target or DEFAULT
    session = own_session(name) or SESSIONS.known().get(name)
    if session is not None:
        return session.trace()
    if is_engine(name):
        return running.trace_of(running.find(name))
    if target is None:
        raise no_session(name)
    path = Path(name).expanduser()
    if path.exists():
        return Trace.load(path)
    raise ConfigError(f"{no_session(name)}; nor is there a file or folder of that name")


def no_session(name: str) -> ConfigError:
    """There is no session of that name; says which there are."""
    return ConfigError(f"no session {name!r} runs in this kernel; there is {', '.join(SESSIONS.live()) or 'none'}")


def is_engine(name: str) -> bool:
    """Whether it is written like a pid or a URL."""
    return name.isdigit() or name.startswith(("http://", "https://"))
