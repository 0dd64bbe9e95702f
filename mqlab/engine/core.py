"""The seam between topologies and engines: a core, and the one dispatcher of commands to it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from mqlab.errors import ModelUnavailable, RequestError
from mqlab.plan import InFlight, SampledTokens
from mqlab.types import Abort, Call, Command, Delta, Event, Failure, ModelInfo, Request, Step


class Core(Protocol):
    """An engine: synchronous, single-threaded, no sockets, no asyncio, no clock but the injected one.

    One step is ``begin`` (schedule and launch), then the flight's ``wait``, then ``finish`` (account and emit). Between begin
    and finish, add, abort and call remain legal: an add only queues, an abort only marks (its blocks are freed by
    ``finish``, after the device is done), a call is deferred and its Reply is among the events of ``finish``.

    A call that takes long is done in parts, each a flight like a step: ``loading`` tells them apart. Whatever holds for a step in flight
    holds for them.
    """

    @property
    def info(self) -> ModelInfo:
        """What clients must know, as of now."""
        ...

    @property
    def calls(self) -> Mapping[str, Callable[..., Any]]:
        """Control calls by name: at least ``stats``, ``start_profile``, ``stop_profile``, ``ping``."""
        ...

    @property
    def has_work(self) -> bool:
        """Whether a step would do anything."""
        ...

    @property
    def loading(self) -> bool:
        """Whether what ``begin`` launches next, or has launched, is part of a call (a load): no step, and it may take minutes."""
        ...

    def check(self) -> None:
        """See that all that a step needs is there; asked now and then while there is no step to find out.

        Raises:
            whatever a step would fail of: it is fatal.
        """
        ...

    def add(self, request: Request) -> None:
        """Queue a request.

        Raises:
            InvalidRequest: it can never run, or its id is live. ModelUnavailable: no model, or another one. Nothing else is harmed.
        """
        ...

    def abort(self, ids: tuple[str, ...] | None, client: int = 0) -> list[Delta]:
        """End a client's requests, all for None, with finish "abort"; unknown ids are ignored.

        Returns:
            their last deltas; in flight: none yet.
        """
        ...

    def call(self, call: Call) -> list[Event]:
        """Run one control call: its Reply, behind what else clients must know; its Reply comes from ``finish`` when it is deferred."""
        ...

    def begin(self) -> InFlight:
        """Schedule one step and launch it, or launch a part of a call. Only when ``has_work``."""
        ...

    def finish(self, sampled: SampledTokens) -> list[Event]:
        """Account one step: append tokens, end sequences, free blocks, run deferred calls. One Step per client that gained something."""
        ...

    def close(self) -> None:
        """Free everything; idempotent."""
        ...


def no_op() -> None:
    """The default for ``on_device_busy``."""


def step(core: Core, on_device_busy: Callable[[], None] = no_op) -> list[Event]:
    """One whole step. ``on_device_busy`` runs while the device does: the place to send the last step's outputs and take input.

    Source: the engine callback of vLLM PR 8157.
    """
    flight = core.begin()
    on_device_busy()
    return core.finish(flight.wait())


def _add(core: Core, request: Request) -> list[Event]:
    try:
        core.add(request)
    except RequestError as error:
        failure = Failure("unavailable" if isinstance(error, ModelUnavailable) else "invalid", str(error))
        return [Step([Delta(request.id, [], finish="error", error=failure)], client=request.client)]
    return []


def _abort(core: Core, abort: Abort) -> list[Event]:
    deltas = core.abort(abort.ids, abort.client)
    return [Step(deltas, client=abort.client)] if deltas else []


def _call(core: Core, call: Call) -> list[Event]:
    return core.call(call)


_HANDLERS: dict[type, Callable[[Core, Any], list[Event]]] = {Request: _add, Abort: _abort, Call: _call}


def apply(core: Core, command: Command) -> list[Event]:
    """Hand one command to a core: the only dispatcher. Returns what must be answered at once.

    A refused request becomes an error delta of its own; any other exception is the core's and fatal.
    """
    return _HANDLERS[type(command)](core, command)
