"""The port, or the unix socket: taken before anything slow begins, so that a wrong one is known at once."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import stat
from collections.abc import Iterator
from pathlib import Path

import psutil

from mqlab.config import ServerConfig
from mqlab.errors import ConfigError
from mqlab.server.http.access import check_control

_BACKLOG = 65_535
"""The kernel cuts it to what it allows (net.core.somaxconn)."""

_ANSWER_S = 1.0
_HOSTS = "use 127.0.0.1 for this machine, 0.0.0.0 for all"


@contextlib.contextmanager
def listening(server: ServerConfig) -> Iterator[socket.socket]:
    """The socket of ``listen``, closed at the end, and the file of a unix socket removed."""
    listener = listen(server)
    own = None if server.uds is None else _identity(server.uds)
    try:
        yield listener
    finally:
        listener.close()
        if server.uds is not None and _identity(server.uds) == own:  # not that of a server that came later
            Path(server.uds).unlink()


def listen(server: ServerConfig) -> socket.socket:
    """A listening socket; who connects before the server is ready waits for its answer.

    An address that a killed server has left can be taken at once.

    Raises:
        ConfigError: the port is taken or may not be used, or the host is no address of this machine; control routes would be open to
            others without a key.
    """
    if server.uds is not None:
        return _listen_path(Path(server.uds))
    host, port = server.host, server.port
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    except (socket.gaierror, UnicodeError) as error:
        raise ConfigError(f"--host={host!r} is no address: {error}; {_HOSTS}") from error
    check_control(server, str(address[0]))
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        raise ConfigError(_explain(error, host, port)) from error
    listener.setblocking(False)
    return listener


def listen_unix(path: Path) -> socket.socket:
    """A listening unix socket; whoever owns its folder removes the file."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listener.bind(str(path))
        listener.listen(_BACKLOG)
    except OSError:
        listener.close()
        raise
    listener.setblocking(False)
    return listener


def url(server: ServerConfig, listener: socket.socket) -> str:
    """Where the server is reached, with the port that it really has; ``unix:PATH`` for a unix socket."""
    if server.uds is not None:
        return f"unix:{Path(server.uds).absolute()}"
    name = f"[{server.host}]" if ":" in server.host else server.host
    scheme = "http" if server.ssl_certfile is None else "https"
    return f"{scheme}://{name}:{listener.getsockname()[1]}"


def _listen_path(path: Path) -> socket.socket:
    """A socket at a path that the user chose; one that nobody answers any more is replaced."""
    try:
        _make_way(path)
        return listen_unix(path)
    except OSError as error:
        remedy = "it must be in a folder that exists and may be written to, and the path under 107 bytes"
        raise ConfigError(f"cannot listen on --uds={str(path)!r}: {error.strerror or error}; {remedy}") from error


def _make_way(path: Path) -> None:
    if (found := _identity(path)) is None:
        return
    if not stat.S_ISSOCK(path.lstat().st_mode):
        raise ConfigError(f"--uds={str(path)!r} is a file and no socket: nothing was removed; choose another path")
    with socket.socket(socket.AF_UNIX) as caller, contextlib.suppress(ConnectionRefusedError):
        caller.settimeout(_ANSWER_S)
        caller.connect(str(path))
        raise ConfigError(f"--uds={str(path)!r}: a server listens there already; stop it ('mqlab ps' shows it) or choose another path")
    if _identity(path) == found:
        path.unlink()


def _identity(path: Path | str) -> tuple[int, int] | None:
    """Of a file, None where there is none."""
    try:
        found = os.lstat(path)
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino


def _explain(error: OSError, host: str, port: int) -> str:
    if error.errno == errno.EADDRINUSE:
        return f"port {port} on {host} is taken{_holder(port)}; choose another --port, or --port 0 for a free one"
    if error.errno == errno.EACCES:
        return f"port {port} may not be used by this user; choose a --port of 1024 or above"
    return f"cannot listen on --host={host!r} --port={port}: {error.strerror}; {_HOSTS}"


def _holder(port: int) -> str:
    """Who listens there, as far as this user may know."""
    try:
        for connection in psutil.net_connections("tcp"):
            if connection.status == psutil.CONN_LISTEN and connection.laddr and connection.laddr.port == port and connection.pid:
                return f" by process {connection.pid} ({psutil.Process(connection.pid).name()})"
    except psutil.Error:
        pass
    return ""
