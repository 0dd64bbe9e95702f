"""An engine's loop that meets only queues: for layouts whose threads, or whose own process, stand between it and the sockets."""

from __future__ import annotations

from queue import Empty, SimpleQueue
from typing import Protocol

from mqlab.engine.service import Service
from mqlab.types import Command, Event


class Outbox(Protocol):
    """Where events go; never waits."""

    def put(self, item: Event, /) -> None:
        """Add one."""
        ...


class BusyLoop:
    """Takes commands, steps, puts events. Source: vLLM V1's EngineCoreProc.run_busy_loop.

    Attributes:
        inbox: commands to it; an exception is raised in it, None ends it after the step it is at.
    """

    def __init__(self, service: Service, outbox: Outbox, idle_interval: float) -> None:
        self._service = service
        self._outbox = outbox
        self._idle_interval = idle_interval
        self._told_to_end = False
        self.inbox: SimpleQueue[Command | Exception | None] = SimpleQueue()

    def run(self) -> None:
        """Serve until told to end."""
        while True:
            if not self._service.has_work:
                self._wait_for_command()
            self._take_commands()
            if self._told_to_end:
                return
            if self._service.has_work:
                # Aborts that arrive while the device runs are known before its tokens are accounted.
                self._put(self._service.step(self._take_commands))

    def _wait_for_command(self) -> None:
        while True:
            try:
                self._take(self.inbox.get(timeout=self._idle_interval))
                return
            except Empty:
                self._service.idle()

    def _take_commands(self) -> None:
        while not self.inbox.empty():
            self._take(self.inbox.get())

    def _take(self, command: Command | Exception | None) -> None:
        if command is None:
            self._told_to_end = True
        elif isinstance(command, Exception):
            raise command
        else:
            self._put(self._service.apply(command))

    def _put(self, events: list[Event]) -> None:
        for event in events:
            self._outbox.put(event)
