"""What every core keeps beside its steps: who is live, what was asked during a flight, what is counted."""

from __future__ import annotations

import logging
from collections import defaultdict, deque
from collections.abc import Callable, Iterable
from itertools import repeat, zip_longest
from typing import TYPE_CHECKING, Any

from mqlab.clock import Clock
from mqlab.engine.admission import Admission, check_fields, derived_seed
from mqlab.engine.available import check_available
from mqlab.engine.burst import one_by_one
from mqlab.engine.calls import Switchboard
from mqlab.engine.cost import cost_of
from mqlab.engine.finish import verdict
from mqlab.engine.iterations import Iterations
from mqlab.engine.pooling import embedding
from mqlab.engine.profile import Profiler
from mqlab.engine.sequence import Key, Sequence
from mqlab.engine.takeoff import Landed
from mqlab.errors import InvalidRequest
from mqlab.logprobs import Logprobs
from mqlab.plan import InFlight, SampledTokens
from mqlab.types import Call, Delta, EngineStats, Event, Failure, Finish, ModelInfo, Request, Step

if TYPE_CHECKING:
    from mqlab.engine.grammar import Grammars

logger = logging.getLogger("mqlab.engine")

_NOTHING_LEFT = (
    "no token was left to choose: allowed_token_ids, bad_words, min_tokens, logit_bias and structured_outputs together mask the whole "
    "vocabulary; relax one of them"
)


COUNTERS = frozenset(("preemptions", "prefix_queries", "prefix_hits", "drafts", "drafted", "accepted", "accepted_at"))
"""Fields of EngineStats that a core's queues count, and that go on when they are made anew."""


class Desk:
    """The part of the Core contract that no scheduling policy changes. A core owns one and steps between ``depart`` and ``settle``.

    With ``depth`` 2 a core runs ahead (vLLM's async scheduling): while its caller waits for one flight, the next has been launched. That
    one stays in flight between ``settle`` and ``depart``; an abort then ends its request at once, and its last tokens go nowhere.

    Requests are admitted once ``serve`` has said for which model; it says so again after each change.

    Args:
        clock: stamps the statistics.

    Attributes:
        calls: the control calls that every core has; a core may add its own.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._gauges: Callable[[], dict[str, Any]] = dict
        self._past: dict[str, Any] = {}
        self._profiler = Profiler()
        self._live: dict[Key, Sequence] = {}
        self._flights: deque[InFlight] = deque()
        self._in_flight = False
        self._marked: list[Sequence] = []
        self._arrivals = self._steps = self._prompt_tokens = self._cached_tokens = self._generation_tokens = 0
        self._iterations = Iterations()
        self._device_ns = self._oversleep_ns = 0
        self._finished: dict[str, int] = dict.fromkeys(("stop", "length", "abort", "error"), 0)
        self.calls: dict[str, Callable[..., Any]] = {
            "ping": lambda: True,
            "stats": self.stats,
            "start_profile": self._profiler.start,
            "stop_profile": self._profiler.stop,
        }
        self._board = Switchboard(self.calls)

    def serve(
        self,
        info: ModelInfo,
        seed: int,
        release: Callable[[Sequence], None],
        gauges: Callable[[], dict[str, Any]],
        depth: int = 1,
        one_by_one: bool = True,
        max_logprobs: int = -1,
        grammars: Grammars | None = None,
    ) -> None:
        """Hold requests to a model from now on. Only while nothing is live and nothing in flight; what was counted goes on.

        Args:
            info: the limits that requests are held to.
            seed: base of the seeds of requests that bring none.
            release: takes a sequence that ended out of the core's queues and frees its blocks.
            gauges: the fields of EngineStats that only the core knows, at this moment; of its counters, since ``serve``.
            depth: steps in flight at once, at most.
            one_by_one: the tokens that several rounds gave go out in a message each.
            max_logprobs, grammars: as Admission takes them.
        """
        self._past = {name: count for name, count in self._tally().items() if name in COUNTERS}
        self._info = info
        self._admission = Admission(info, max_logprobs, grammars)
        self._seed = seed
        self._release = release
        self._gauges = gauges
        self._depth = depth
        self._one_by_one = one_by_one

    @property
    def busy(self) -> bool:
        """Whether any request is live, a step in flight, or a call under way."""
        return bool(self._live or self._flights or self._board.working)

    @property
    def loading(self) -> bool:
        """Whether a call in parts is under way: what departs next, or has departed, is one of them and no step."""
        return self._board.working

    def admit(self, request: Request) -> Sequence:
        """Make a request live.

        Raises:
            InvalidRequest: it can never run, or its id is live. ModelUnavailable: no model, or another one.
        """
        check_fields(request)
        check_available(self._info, request)
        key = request.client, request.id
        if key in self._live:
            raise InvalidRequest(f"request id {request.id!r} is live already; give each live request an id of its own")
        sequence = self._admission.admit(request, derived_seed(self._seed, self._arrivals))
        sequence.arrived_ns = self._clock.now_ns()
        self._arrivals += 1
        self._live[key] = sequence
        return sequence

    def abort(self, ids: Iterable[str] | None, client: int) -> list[Delta]:
        """End these requests of a client, all for None, or mark them when in flight."""
        found = self._of(client) if ids is None else [self._live[client, id] for id in dict.fromkeys(ids) if (client, id) in self._live]
        if not self._in_flight:
            return [self._end(sequence, [], "abort") for sequence in found]
        for sequence in found:
            self._mark(sequence)
        return []

    def call(self, call: Call) -> list[Event]:
        """Answer a control call, or keep it for ``settle`` when in flight."""
        self._board.take(call)
        return [] if self._in_flight else self._board.answers()

    def announce(self, event: Event) -> None:
        """What a call tells clients beside its answer, and before it."""
        self._board.announce(event)

    def expel(self, failure: Failure) -> None:
        """End every live request, for a call. What is in flight is waited for, and its tokens go nowhere."""
        while self._flights:
            try:
                self._flights.popleft().wait()
            except Exception as error:
                logger.warning("a step of which nobody wanted to hear failed", exc_info=error)
        for step in self._end_all(self._live.values(), "error", failure):
            self.announce(step)

    def depart(self, launch: Callable[[], InFlight | None]) -> InFlight:
        """Launch as many steps as may be in flight, or a part of the call under way: from here to ``settle`` nothing may change.

        Args:
            launch: launches one step; None when it must wait for one in flight.

        Returns:
            the oldest flight, for which ``settle`` is to be called.
        """
        self._in_flight = True
        if self._board.working:
            return self._board.part()
        while len(self._flights) < self._depth and (flight := launch()) is not None:
            self._flights.append(flight)
        return self._flights[0]

    def settle(self, land: Callable[[SampledTokens], Landed], sampled: SampledTokens) -> list[Event]:
        """What departed came back: hand out its tokens, end what is done or marked, answer what was asked meanwhile.

        Args:
            land: tells of a step whose it was.
        """
        self._in_flight = False
        if self._board.working:
            events = [*self._end_all(self._taken_marks(), "abort"), *self._board.landed()]
        else:
            events = self._hand_out(land(sampled), sampled)
        return events + self._board.answers()

    def _hand_out(self, landed: Landed, sampled: SampledTokens) -> list[Event]:
        """The oldest step came back. Tokens behind a sequence's end are dropped."""
        self._flights.popleft()
        self._steps += 1
        self._iterations.note(landed.tokens)
        self._device_ns += sampled.device_ns
        self._oversleep_ns += sampled.oversleep_ns
        self._profiler.stepped()
        for row, logprobs in sampled.prompts.items():
            landed.flown[row].note_scores(logprobs)
        for row, state in sampled.pooled.items():
            landed.flown[row].note_state(state)
        outbox: defaultdict[int, list[Delta]] = defaultdict(list)
        for sequence, tokens, own in zip(landed.drew, sampled.tokens, sampled.logprobs or repeat(None, len(sampled.tokens)), strict=True):
            sequence.owed -= len(tokens)
            if not sequence.ended:
                outbox[sequence.client].append(self._gain(sequence, tokens, own))
        for sequence in landed.done:
            if not sequence.ended:
                outbox[sequence.client].append(self._complete(sequence))
        for sequence in self._taken_marks():
            outbox[sequence.client].append(self._end(sequence, [], "abort"))
        steps = [Step(deltas, client=client) for client, deltas in outbox.items()]
        if sampled.rounds > 1 and self._one_by_one:
            steps = [one for step in steps for one in one_by_one(step)]
        return list(steps)

    def stats(self) -> EngineStats:
        """Counters and gauges now."""
        return EngineStats(
            stamp_ns=self._clock.now_ns(),
            steps=self._steps,
            prompt_tokens=self._prompt_tokens,
            cached_tokens=self._cached_tokens,
            generation_tokens=self._generation_tokens,
            finished=dict(self._finished),
            iteration_tokens=self._iterations.counts,
            iteration_tokens_sum=self._iterations.sum,
            device_us=self._device_ns // 1000,
            oversleep_us=self._oversleep_ns // 1000,
            **self._tally(),
        )

    def _tally(self) -> dict[str, Any]:
        """The core's own fields of EngineStats; what its queues of before counted is in them."""
        gauges = self._gauges()
        if not self._past:
            return gauges
        return {**gauges, **{name: _plus(count, gauges.get(name)) for name, count in self._past.items()}}

    def close(self) -> None:
        """End a profile that still runs, and the call under way."""
        self._profiler.close()
        self._board.close()

    def _gain(self, sequence: Sequence, tokens: tuple[int, ...], logprobs: Logprobs | None) -> Delta:
        if sequence.first_ns < 0:
            return self._begin(sequence, tokens, logprobs)
        for count, token in enumerate(tokens, 1):
            if token < 0:
                return self._fail(sequence, list(tokens[: count - 1]), logprobs)
            sequence.tokens.append(token)
            self._generation_tokens += 1
            if sequence.guide is not None:
                sequence.guide.take(token)
            elif token not in sequence.stops and len(sequence.tokens) < sequence.limit:
                continue  # which spares nearly every token the verdict
            finish, reason = verdict(sequence)
            if finish is not None:
                kept = logprobs if logprobs is None or count == len(tokens) else logprobs.cut(count)
                return self._dressed(sequence, self._end(sequence, list(tokens[:count]), finish, reason), kept)
        delta = Delta(sequence.id, list(tokens))
        return delta if sequence.plain and logprobs is None else self._dressed(sequence, delta, logprobs)

    def _begin(self, sequence: Sequence, tokens: tuple[int, ...], logprobs: Logprobs | None) -> Delta:
        """Its first gain: the prompt is done, and what it cost is told."""
        self._count_prompt(sequence)
        sequence.first_ns = self._clock.now_ns()
        delta = self._gain(sequence, tokens, logprobs)
        if delta.stats is None:
            delta.stats = cost_of(sequence, sequence.first_ns)
        return delta

    def _count_prompt(self, sequence: Sequence) -> None:
        self._prompt_tokens += sequence.num_prompt
        self._cached_tokens += sequence.cached

    def _dressed(self, sequence: Sequence, delta: Delta, logprobs: Logprobs | None) -> Delta:
        """The delta with the logprobs of its tokens, and those of the prompt when it is the first."""
        if logprobs is not None:
            delta.logprobs = logprobs
        if sequence.prompt_logprobs is not None:
            delta.prompt_logprobs, sequence.prompt_logprobs = sequence.prompt_logprobs, None
        return delta

    def _complete(self, sequence: Sequence) -> Delta:
        """A sequence that wanted only its prompt computed has it."""
        self._count_prompt(sequence)
        delta = self._end(sequence, [], "length" if sequence.pooling is None else "stop")
        delta.embedding = embedding(sequence)
        return self._dressed(sequence, delta, None)

    def _fail(self, sequence: Sequence, tokens: list[int], logprobs: Logprobs | None) -> Delta:
        """No token was left to draw, by what the request itself asks for."""
        delta = self._end(sequence, tokens, "error")
        broken = sequence.guide.error if sequence.guide is not None else ""
        delta.error = Failure("invalid", broken or _NOTHING_LEFT)
        return self._dressed(sequence, delta, logprobs.cut(len(tokens)) if logprobs is not None and tokens else None)

    def _end(self, sequence: Sequence, tokens: list[int], finish: Finish, reason: int | None = None) -> Delta:
        del self._live[sequence.key]
        sequence.ended = True
        self._release(sequence)
        self._finished[finish] += 1
        return Delta(sequence.id, tokens, finish=finish, stop_reason=reason, stats=cost_of(sequence, self._clock.now_ns()))

    def _end_all(self, sequences: Iterable[Sequence], finish: Finish, failure: Failure | None = None) -> list[Event]:
        """End sequences that gain nothing more; a Step for each client."""
        outbox: defaultdict[int, list[Delta]] = defaultdict(list)
        for sequence in tuple(sequences):
            delta = self._end(sequence, [], finish)
            delta.error = failure
            outbox[sequence.client].append(delta)
        return [Step(deltas, client=client) for client, deltas in outbox.items()]

    def _of(self, client: int) -> list[Sequence]:
        return [sequence for sequence in self._live.values() if sequence.client == client]

    def _taken_marks(self) -> list[Sequence]:
        marked, self._marked = self._marked, []
        return marked

    def _mark(self, sequence: Sequence) -> None:
        if not sequence.ended:
            sequence.ended = True
            self._marked.append(sequence)


def _plus(before: Any, now: Any) -> Any:
    """A count, or several by place, with what came later, if anything."""
    if isinstance(before, tuple):
        return tuple([earlier + later for earlier, later in zip_longest(before, now or (), fillvalue=0)])
    return before + (now or 0)
