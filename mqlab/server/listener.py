"""The port: taken before anything slow begins, so that a wrong one is known at once."""

from __future__ import annotations

import errno
import socket
from pathlib import Path

import psutil

from mqlab.config import ServerConfig
from mqlab.errors import ConfigError

_BACKLOG = 2048
_HOSTS = "use 127.0.0.1 for this machine, 0.0.0.0 for all"


def listen(server: ServerConfig) -> socket.socket:
    """A listening socket; who connects before the server is ready waits for its answer.

    An address that a killed server has left can be taken at once.

    Raises:
        ConfigError: the port is taken or may not be used, or the host is no address of this machine.
    """
    host, port = server.host, server.port
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    except (socket.gaierror, UnicodeError) as error:
        raise ConfigError(f"--host={host!r} is no address: {error}; {_HOSTS}") from error
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
    """Where the server is reached, with the port that it really has."""
    name = f"[{server.host}]" if ":" in server.host else server.host
    return f"http://{name}:{listener.getsockname()[1]}"


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
