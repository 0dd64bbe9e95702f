"""The scheduler of ``detok_ring``: an engine's loop without threads that sends each step in columns."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path

from mqlab.client.remote import page_of
from mqlab.client.slot import merge
from mqlab.engine.sequence import Key
from mqlab.engine.service import Service, died_of
from mqlab.topologies.columns import Want, token_columns
from mqlab.topologies.detok_ring import Addresses, Options, growth_of
from mqlab.types import Dead, Delta, Event, Model, Reply, Request, Step
from mqlab.wire.report import Reporter
from mqlab.wire.sockets import sync_sockets
from mqlab.wire.wiring import Wiring

_LINGER_MS = 1000
_NOT_FIRST = ~int(Want.FIRST)


class Pacer:
    """Holds a request's tokens back until it has gained so many, or ended.

    Args:
        interval: tokens, at least 1.
    """

    def __init__(self, interval: int) -> None:
        self._interval = interval
        self._held: dict[Key, Delta] = {}
        self._counts: dict[Key, int] = {}

    def pace(self, step: Step) -> Step:
        """What of a step is due."""
        if self._interval == 1:
            return step
        return Step([due for delta in step.deltas if (due := self._due(delta, step.client)) is not None], step.client)

    def _due(self, delta: Delta, client: int) -> Delta | None:
        key = client, delta.id
        before = self._counts.get(key, 0)
        count = self._counts[key] = before + len(delta.tokens)
        held = self._held.pop(key, None)
        if held is not None:
            delta = merge(held, delta)
        if delta.finish is not None:
            del self._counts[key]
        elif count // self._interval == before // self._interval:
            self._held[key] = delta
            return None
        return delta


class Scheduler:
    """The engine's side: one loop, one thread."""

    def __init__(self, service: Service, wiring: Wiring, options: Options, addresses: Addresses) -> None:
        self._service = service
        self._options = options
        self._idle_interval = wiring.timing.idle_interval
        self._codec = wiring.build_codec()
        self._growth = growth_of(wiring)
        self._pacer = Pacer(options.stream_interval)
        self._wants: dict[Key, int] = {}
        self._stamp_due = 0.0
        sockets = self._sockets = sync_sockets(wiring.engine_socket.build)
        self._input = sockets.connect("pull", addresses.scheduler)
        self._detokenizer = sockets.connect("push", addresses.detokenizer)
        self._front = sockets.connect("push", addresses.front)
        self._send([Model(service.info)])

    def run(self) -> None:
        """Serve until stopped."""
        while True:
            self._take_commands()
            if self._service.has_work:
                self._send(self._service.step())
            else:
                self._rest()

    def last_words(self, dead: Dead) -> None:
        """Tell the front why the engine ends."""
        with contextlib.suppress(Exception):  # what made the engine fail may be what it cannot send
            self._send([dead])
        self._sockets.close(linger_ms=_LINGER_MS)

    def _take_commands(self) -> None:
        while self._input.poll(0):
            command = self._codec.command(self._input.recv())
            if self._options.detokenize and type(command) is Request and (wanted := Want.of(command)):
                self._wants[command.client, command.id] = wanted
            self._send(self._service.apply(command))

    def _rest(self) -> None:
        if self._options.idle == "poll":
            if not self._input.poll(round(self._idle_interval * 1000)):
                self._service.idle()
        elif (now := time.monotonic()) > self._stamp_due:
            self._stamp_due = now + self._idle_interval
            self._service.idle()

    def _send(self, events: list[Event]) -> None:
        for event in events:
            if type(event) is Step:
                self._send_step(self._pacer.pace(event))
                continue
            if type(event) is not Reply:
                self._detokenizer.send(self._codec.encode(event))
            if type(event) is not Dead:
                self._front.send(self._codec.encode(event))

    def _send_step(self, step: Step) -> None:
        if not step.deltas:
            return
        wants = [self._want(delta, step.client) for delta in step.deltas]
        grown = step if self._growth is None else self._growth.grow(step)
        self._detokenizer.send(self._codec.encode(token_columns(grown, wants)))

    def _want(self, delta: Delta, client: int) -> int:
        key = client, delta.id
        wanted = self._wants.get(key, 0)
        if wanted:
            if delta.finish is None:
                self._wants[key] = wanted & _NOT_FIRST
            else:
                del self._wants[key]
        return wanted


def run_scheduler(reporter: Reporter, run_dir: Path, *, wiring: Wiring, options: Options, addresses: Addresses) -> None:
    """The scheduler process: build the core, connect, say what it is, serve."""
    service = Service(wiring.build_core(), page_of(run_dir), wiring.log_stats_interval)
    scheduler = Scheduler(service, wiring, options, addresses)
    reporter.ready()
    try:
        scheduler.run()
    except Exception as error:
        scheduler.last_words(died_of(error))
        raise
