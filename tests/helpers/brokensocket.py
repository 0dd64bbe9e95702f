"""Sockets that break, or hang, in one process of a layout: in that of the detokenizer."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import zmq


class BrokenSocket(zmq.Socket[bytes]):
    """Fails, or stays, at the message after so many."""

    def __init__(self, *args: Any, after: int, hang: bool, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.__dict__.update(left=after, hang=hang)

    def recv(self, *args: Any, **kwargs: Any) -> Any:
        """See zmq.Socket.recv."""
        while self.__dict__["left"] <= 0 and self.__dict__["hang"]:
            pass
        if self.__dict__["left"] <= 0:
            raise OSError("this socket was told to break")
        self.__dict__["left"] -= 1
        return super().recv(*args, **kwargs)


def socket_class(edge: str, role: str = "engine", *, after: int, hang: bool = False) -> Callable[..., zmq.Socket[bytes]]:
    """For ``Wiring.engine_socket``."""
    return partial(BrokenSocket, after=after, hang=hang) if role == "detokenizer" else zmq.Socket
