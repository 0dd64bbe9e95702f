"""Requests as the front sees them: when each came, when each of its deltas arrived, and how it ended.

Per delta there is room for a few tens of nanoseconds: without a model, a whole token costs a front two thousand. So a delta only gets
the stamp of its step; sums and lines are made of the stamps when the loop's probe ticks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from time import monotonic_ns
from typing import Any

import msgspec

from mqlab.client.direct import Direct, Owner
from mqlab.client.mailbox import Holding, Mailbox
from mqlab.client.queue import Queue
from mqlab.client.slot import Slot
from mqlab.client.streams import Streams
from mqlab.probes.base import dropped
from mqlab.probes.cost import cost_ns
from mqlab.probes.sink import Sink
from mqlab.record.requests import FrontRow
from mqlab.types import Delta, Request, SamplingParams

_REHEARSED = 64
_TOGETHER = 4
_MANY = 256  # requests that ended, and do not wait for a tick any longer
_ENDS: dict[str, str] = {"stop": "finished", "length": "finished", "error": "failed", "abort": "aborted", "left": "aborted"}


class Metered(Mailbox):
    """A mailbox that knows what has come for it.

    Attributes:
        token_ns: when each delta with tokens arrived.
        uneven: how many tokens a delta had, by its place in ``token_ns``, where it was not one.
        extra: tokens beyond one a delta.
        finish: how the request ended, for whoever reads it.
    """

    uneven: dict[int, int] | None = None
    extra = 0
    finish = ""

    def __init__(self, request: Request, *own: Any) -> None:
        super().__init__(*own)
        self.id = request.id
        self.prompt_tokens = len(request.prompt)
        self.arrived_ns = monotonic_ns()
        self.token_ns: list[int] = []

    def note_uneven(self, count: int) -> None:
        """The delta that was stamped last has not one token, but ``count``."""
        if count:
            self.uneven = self.uneven or {}
            self.uneven[len(self.token_ns) - 1] = count
            self.extra += count - 1
        else:
            self.token_ns.pop()

    def row(self) -> FrontRow:
        """Its line in the recording."""
        stamps, counts = self.token_ns, None
        if self.uneven:
            counts = [self.uneven.get(place, 1) for place in range(len(stamps))]
        first, last = (stamps[0], stamps[-1]) if stamps else (None, None)
        tokens = len(stamps) + self.extra
        return FrontRow(self.id, self.arrived_ns, first, last, self.prompt_tokens, tokens, self.finish, stamps, counts)


class MeteredSlot(Metered, Slot):
    """A metered slot."""


class MeteredQueue(Metered, Queue):
    """A metered queue."""


class MeteredDirect(Metered, Direct):
    """A metered mailbox that holds nothing."""


_METERED: dict[type[Mailbox], Callable[..., Any]] = {Slot: MeteredSlot, Queue: MeteredQueue, Direct: MeteredDirect}


class Sums(msgspec.Struct):
    """What the tokens of some requests come to; the fields are counters of ``request.``."""

    ttft_ns: int = 0
    ttft_count: int = 0
    itl_ns: int = 0
    itl_count: int = 0
    output_tokens: int = 0

    def add(self, slot: Metered) -> None:
        """And those of one more."""
        stamps = slot.token_ns
        if stamps:
            self.ttft_ns += stamps[0] - slot.arrived_ns
            self.ttft_count += 1
            self.itl_ns += stamps[-1] - stamps[0]
            self.itl_count += len(stamps) - 1
            self.output_tokens += len(stamps) + slot.extra


class RequestProbe:
    """Counters and lines about the requests of one front. On the event loop's thread; never raises.

    Args:
        step_cost_ns: what stamping 64 deltas costs.
        request_cost_ns: what a request costs beside that.
    """

    def __init__(self, sink: Sink, *, step_cost_ns: int, request_cost_ns: int) -> None:
        names = ("started", "finished", "failed", "aborted", "running", "prompt_tokens", *Sums.__struct_fields__)
        self._block = sink.block(
            *(f"request.{name}" for name in names), "probe.requests.events", "probe.requests.ns", "probe.requests.dropped"
        )
        self._lines = sink.lines()
        self._costs = step_cost_ns, request_cost_ns
        self._live: dict[str, Metered] = {}
        self._ended: list[Metered] = []
        self._ends: dict[str, int] = dict.fromkeys(("finished", "failed", "aborted"), 0)
        self._sums = Sums()
        self._started = self._prompt_tokens = self._deltas = 0
        self._on = True

    def open(self, request: Request, kind: type[Mailbox] = Slot, *own: Any) -> Any:
        """A request came; ``kind`` is that of its mailbox, which is made with ``own``. Returns it, metered."""
        slot = self._live[request.id] = _METERED[kind](request, *own)
        self._started += 1
        self._prompt_tokens += slot.prompt_tokens
        return slot

    def end(self, request_id: str, finish: str) -> None:
        """Its reader is done with it; or was, when the client was closed."""
        slot = self._live.pop(request_id, None)
        if slot is None:
            return
        slot.finish = finish
        self._ended.append(slot)
        if len(self._ended) >= _MANY:
            self.tick()

    def tick(self) -> None:
        """Write what has come together since the last time."""
        ended, self._ended = self._ended, []
        if not self._on:
            return
        try:
            self._settle(ended)
            self._count()
        except Exception as error:
            self._on = False
            dropped("requests", error)

    def stop(self) -> None:
        """The client is closed: what is still open ends as it stands, and nothing is noted any more."""
        for id, slot in list(self._live.items()):
            self.end(id, _finish(slot, None))
        self.tick()
        self._on = False

    def _settle(self, ended: list[Metered]) -> None:
        for slot in ended:
            self._ends[_ENDS[slot.finish]] += 1
            self._deltas += len(slot.token_ns)
            self._sums.add(slot)
        if ended:
            self._lines.write([slot.row() for slot in ended])

    def _count(self) -> None:
        sums, deltas = msgspec.structs.replace(self._sums), self._deltas
        for slot in self._live.values():
            if slot.token_ns:
                sums.add(slot)
                deltas += len(slot.token_ns)
        ended = sum(self._ends.values())
        cost = deltas * self._costs[0] // _REHEARSED + ended * self._costs[1]
        counts = self._started, *self._ends.values(), len(self._live), self._prompt_tokens
        self._block.write(*counts, *msgspec.structs.astuple(sums), deltas + ended, cost, 0)


class MeteredStreams(Streams):
    """Streams that stamp what comes."""

    def __init__(self, probe: RequestProbe, kind: type[Holding] = Slot) -> None:
        super().__init__(kind)
        self._probe = probe

    def _new_slot(self, request: Request) -> Holding:
        return self._probe.open(request, self.kind)

    def _new_direct(self, request: Request, owner: Owner) -> Direct:
        return self._probe.open(request, Direct, owner)

    def leave(self, request_id: str, last: Delta | None, *, alive: bool) -> bool:
        """See Streams.leave."""
        self._probe.end(request_id, _finish(self._slots[request_id], last))
        return super().leave(request_id, last, alive=alive)

    def put(self, deltas: Iterable[Delta]) -> None:
        """See Streams.put, of which this is a copy with two lines more: one more call a delta would double what noting it costs."""
        now = monotonic_ns()
        slots: dict[str, Any] = self._slots
        for delta in deltas:
            slot = slots.get(delta.id)
            if slot is None:
                continue
            if slot.left:
                if delta.finish is None:
                    continue
                del slots[delta.id]
            slot.token_ns.append(now)
            try:
                (_,) = delta.tokens  # a third of what asking for the length costs
            except ValueError:
                slot.note_uneven(len(delta.tokens))
            slot.put(delta)


def request_probe(sink: Sink) -> RequestProbe:
    """A probe that knows what it costs."""
    return RequestProbe(sink, step_cost_ns=cost_ns(rehearse_step), request_cost_ns=cost_ns(rehearse_requests) // _TOGETHER)


def _finish(slot: Mailbox, last: Delta | None) -> str:
    """How a request ended for a reader whose last delta that was: with it, by an error, or early."""
    if last is not None and last.finish is not None:
        return last.finish
    return "error" if slot.failed else "left"


_REQUEST = Request("scratch", [1], SamplingParams())


def rehearse_step(sink: Sink) -> Callable[[], object]:
    """What is noted of a step of 64 deltas."""
    slot, deltas = MeteredSlot(_REQUEST), [Delta("scratch", [1])] * _REHEARSED

    def stamp() -> None:
        now = monotonic_ns()
        for delta in deltas:
            slot.token_ns.append(now)
            try:
                (_,) = delta.tokens
            except ValueError:
                slot.note_uneven(len(delta.tokens))

    return stamp


def rehearse_requests(sink: Sink) -> Callable[[], object]:
    """Four requests that come and gain 64 tokens each in no time, and their lines."""
    probe = RequestProbe(sink, step_cost_ns=0, request_cost_ns=0)

    def run() -> None:
        for _ in range(_TOGETHER):
            slot = probe.open(_REQUEST)
            slot.token_ns = [slot.arrived_ns] * _REHEARSED
            probe.end(slot.id, "length")
        probe.tick()

    return run
