"""The loop of a process beside the engine's: message after message, its page stamped as an engine's is, so that a hang is seen."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

import zmq

from mqlab.wire.statspage import Phase, StatsPage

DETOKENIZER = "detokenizer"
"""Role of the process that turns tokens into text."""


def work_off(
    socket: zmq.Socket[bytes], receive: Callable[[], Any], work: Callable[[Any], None], page: StatsPage, idle_interval: float
) -> NoReturn:
    """Receive and work for ever.

    Args:
        socket: what ``receive`` reads.
        idle_interval: how often an idle loop stamps its page, s.
    """
    socket.set(zmq.RCVTIMEO, round(idle_interval * 1000))  # a poll would cost more than a small message's work
    while True:
        page.enter(Phase.IDLE)
        try:
            message = receive()
        except zmq.Again:
            continue
        page.enter(Phase.STEP)
        work(message)
