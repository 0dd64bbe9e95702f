"""Control calls: a name, its arguments, an answer; at once, after the step in flight, or in parts."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Generator, Mapping
from typing import Any

from mqlab.errors import CallError, MqlabError
from mqlab.plan import InFlight, SampledTokens
from mqlab.types import Call, Event, Reply

logger = logging.getLogger("mqlab.engine")

Table = Mapping[str, Callable[..., Any]]
Parts = Generator[Callable[[], Any], Any, Any]
"""What a call that takes long returns: it yields what is to be done in flight, one part after the other, is given what came of each,
and does between them what must not happen in flight. What it returns is the answer. A part that fails is raised in it, as a CallError."""


def answer(calls: Table, call: Call) -> Reply:
    """Run one call. Whatever goes wrong is in the reply's ``error``: a call never harms the engine."""
    try:
        return Reply(call.id, _find(calls, call.method)(*call.args), client=call.client)
    except Exception as error:
        return Reply(call.id, error=_told(call, error), client=call.client)


def _find(calls: Table, method: str) -> Callable[..., Any]:
    if method not in calls:
        raise CallError(f"unknown call {method!r}; known: {', '.join(sorted(calls))}")
    return calls[method]


def _told(call: Call, error: Exception) -> str:
    return str(error) if isinstance(error, MqlabError) else f"{call.method}: {type(error).__name__}: {error}"


class Part:
    """One part of a long call, as a flight: ``wait`` does it, and fails with nothing."""

    def __init__(self, call: Call, work: Callable[[], Any]) -> None:
        self._call = call
        self._work = work
        self.result: Any = None
        self.failure: str | None = None

    def wait(self) -> SampledTokens:
        """Do it."""
        try:
            self.result = self._work()
        except Exception as error:
            # Only the text is kept: the error's frames would keep what was half made, a model perhaps.
            self.failure = _told(self._call, error)
            if not isinstance(error, MqlabError):
                logger.warning("%s failed", self._call.method, exc_info=error)
        return SampledTokens(())


class Job:
    """A call in parts that is under way."""

    def __init__(self, call: Call, parts: Parts) -> None:
        self._call = call
        self._parts = parts
        self.part: Part | None = None

    def go_on(self) -> Reply | None:
        """What follows the part that is done; None when that is another ``part``."""
        part, self.part = self.part, None
        try:
            if part is not None and part.failure is not None:
                work = self._parts.throw(CallError(part.failure))
            else:
                work = self._parts.send(part and part.result)
        except StopIteration as end:
            return Reply(self._call.id, end.value, client=self._call.client)
        except Exception as error:
            return Reply(self._call.id, error=_told(self._call, error), client=self._call.client)
        self.part = Part(self._call, work)
        return None

    def close(self) -> None:
        """It will not go on."""
        self._parts.close()


class Switchboard:
    """Takes a core's calls. None is begun before the last is done, or while a step is in flight.

    Attributes:
        table: the calls by name; whoever shares it may add some.
    """

    def __init__(self, table: dict[str, Callable[..., Any]]) -> None:
        self.table = table
        self._waiting: deque[Call] = deque()
        self._job: Job | None = None
        self._news: list[Event] = []

    @property
    def working(self) -> bool:
        """Whether a call in parts is under way: the next flight is its ``part``."""
        return self._job is not None

    def take(self, call: Call) -> None:
        """Keep a call for ``answers``."""
        self._waiting.append(call)

    def announce(self, event: Event) -> None:
        """What a call tells clients beside its answer, and before it."""
        self._news.append(event)

    def part(self) -> InFlight:
        """The part to launch; only while ``working``."""
        assert self._job is not None and self._job.part is not None, "a job rests at a part only"
        return self._job.part

    def landed(self) -> list[Event]:
        """The part is done: go on with its call."""
        assert self._job is not None, "only a job has parts"
        return self._go_on(self._job)

    def answers(self) -> list[Event]:
        """Nothing is in flight: run the calls that wait, up to the end, or to one in parts."""
        events: list[Event] = []
        while self._waiting and self._job is None:
            events += self._begin(self._waiting.popleft())
        return events

    def close(self) -> None:
        """Drop the call under way."""
        if self._job is not None:
            self._job.close()
            self._job = None

    def _begin(self, call: Call) -> list[Event]:
        reply = answer(self.table, call)
        return self._go_on(Job(call, reply.value)) if isinstance(reply.value, Generator) else self._behind_news(reply)

    def _go_on(self, job: Job) -> list[Event]:
        reply = job.go_on()
        self._job = job if reply is None else None
        return self._behind_news(reply)

    def _behind_news(self, reply: Reply | None) -> list[Event]:
        news, self._news = self._news, []
        return news if reply is None else [*news, reply]
