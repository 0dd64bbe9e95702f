"""What every core keeps beside its steps: who is live, what was asked during a flight, what is counted."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from mqlab.clock import Clock
from mqlab.engine.admission import admit, derived_seed
from mqlab.engine.calls import answer
from mqlab.engine.finish import verdict
from mqlab.engine.profile import Profiler
from mqlab.engine.sequence import Key, Sequence
from mqlab.errors import InvalidRequest
from mqlab.plan import InFlight
from mqlab.types import Call, Delta, EngineStats, Event, Finish, ModelInfo, Reply, Request, Step


class Desk:
    """The part of the Core contract that no scheduling policy changes. A core owns one and steps between ``depart`` and ``settle``.

    With ``depth`` 2 a core runs ahead (vLLM's async scheduling): while its caller waits for one flight, the next has been launched. That
    one stays in flight between ``settle`` and ``depart``; an abort then ends its request at once, and its last tokens go nowhere.

    Args:
        info: the limits that requests are held to.
        seed: base of the seeds of requests that bring none.
        clock: stamps the statistics.
        release: takes a sequence that ended out of the core's queues and frees its blocks.
        gauges: the fields of EngineStats that only the core knows, at this moment.
        depth: steps in flight at once, at most.
    """

    def __init__(
        self,
        info: ModelInfo,
        seed: int,
        clock: Clock,
        release: Callable[[Sequence], None],
        gauges: Callable[[], dict[str, int]],
        depth: int = 1,
    ) -> None:
        self._info = info
        self._eos = frozenset(info.eos_token_ids)
        self._seed = seed
        self._clock = clock
        self._release = release
        self._gauges = gauges
        self._depth = depth
        self._profiler = Profiler()
        self._live: dict[Key, Sequence] = {}
        self._flights: deque[InFlight] = deque()
        self._in_flight = False
        self._marked: list[Sequence] = []
        self._deferred: list[Call] = []
        self._arrivals = self._steps = self._prompt_tokens = self._generation_tokens = 0
        self._finished: dict[str, int] = dict.fromkeys(("stop", "length", "abort", "error"), 0)
        self.calls: Mapping[str, Callable[..., Any]] = {
            "ping": lambda: True,
            "stats": self.stats,
            "start_profile": self._profiler.start,
            "stop_profile": self._profiler.stop,
        }

    @property
    def busy(self) -> bool:
        """Whether any request is live, or a step in flight."""
        return bool(self._live or self._flights)

    def admit(self, request: Request) -> Sequence:
        """Make a request live.

        Raises:
            InvalidRequest: it can never run, or its id is live.
        """
        key = request.client, request.id
        if key in self._live:
            raise InvalidRequest(f"request id {request.id!r} is live already; give each live request an id of its own")
        sequence = admit(request, self._info, derived_seed(self._seed, self._arrivals))
        self._arrivals += 1
        self._live[key] = sequence
        return sequence

    def abort(self, ids: Iterable[str], client: int) -> list[Delta]:
        """End these requests of a client, or mark them when in flight."""
        found = [self._live[client, id] for id in dict.fromkeys(ids) if (client, id) in self._live]
        if not self._in_flight:
            return [self._end(sequence, [], "abort") for sequence in found]
        for sequence in found:
            self._mark(sequence)
        return []

    def call(self, call: Call) -> Reply | None:
        """Answer a control call, or keep it for ``settle`` when in flight."""
        if not self._in_flight:
            return answer(self.calls, call)
        self._deferred.append(call)
        return None

    def depart(self, launch: Callable[[], InFlight | None]) -> InFlight:
        """Launch as many steps as may be in flight: from here to ``settle`` nothing that the device reads may change.

        Args:
            launch: launches one step; None when it must wait for one in flight.

        Returns:
            the oldest flight, for which ``settle`` is to be called.
        """
        while len(self._flights) < self._depth and (flight := launch()) is not None:
            self._flights.append(flight)
        self._in_flight = True
        return self._flights[0]

    def settle(self, gains: Iterable[tuple[Sequence, tuple[int, ...]]]) -> list[Event]:
        """The oldest step came back: hand out its tokens, end what is done or marked, answer what was asked meanwhile.

        Args:
            gains: sequence and new token ids of all that sampled; those behind its end are dropped.
        """
        self._flights.popleft()
        self._in_flight = False
        self._steps += 1
        self._profiler.stepped()
        outbox: defaultdict[int, list[Delta]] = defaultdict(list)
        for sequence, tokens in gains:
            sequence.owed -= len(tokens)
            if not sequence.ended:
                outbox[sequence.client].append(self._gain(sequence, tokens))
        for sequence in self._marked:
            outbox[sequence.client].append(self._end(sequence, [], "abort"))
        steps = [Step(deltas, client=client) for client, deltas in outbox.items()]
        replies = [answer(self.calls, call) for call in self._deferred]
        self._marked, self._deferred = [], []
        return [*steps, *replies]

    def stats(self) -> EngineStats:
        """Counters and gauges now."""
        return EngineStats(
            stamp_ns=self._clock.now_ns(),
            steps=self._steps,
            prompt_tokens=self._prompt_tokens,
            generation_tokens=self._generation_tokens,
            finished=dict(self._finished),
            **self._gauges(),
        )

    def close(self) -> None:
        """End a profile that still runs."""
        self._profiler.close()

    def _gain(self, sequence: Sequence, tokens: tuple[int, ...]) -> Delta:
        if not sequence.num_output:
            self._prompt_tokens += sequence.num_prompt
        for count, token in enumerate(tokens, 1):
            sequence.tokens.append(token)
            self._generation_tokens += 1
            finish, reason = verdict(sequence, self._eos)
            if finish is not None:
                return self._end(sequence, list(tokens[:count]), finish, reason)
        return Delta(sequence.id, list(tokens))

    def _end(self, sequence: Sequence, tokens: list[int], finish: Finish, reason: int | None = None) -> Delta:
        del self._live[sequence.key]
        sequence.ended = True
        self._release(sequence)
        self._finished[finish] += 1
        return Delta(sequence.id, tokens, finish=finish, stop_reason=reason)

    def _mark(self, sequence: Sequence) -> None:
        if not sequence.ended:
            sequence.ended = True
            self._marked.append(sequence)
