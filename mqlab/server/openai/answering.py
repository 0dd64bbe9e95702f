"""The choices of one answer, from their prompts to their ends: opened, pushed to their sinks, left."""

from __future__ import annotations

import asyncio
from typing import Protocol

from mqlab.errors import InvalidRequest
from mqlab.front.choice import ChoiceReader
from mqlab.front.frontend import Frontend, Job
from mqlab.front.prompts import Prompt, room_for
from mqlab.server.metrics.meter import Meter, Times
from mqlab.server.openai.answer import Piece, Plan
from mqlab.server.openai.echo import Echo
from mqlab.server.openai.protocol import Generation
from mqlab.server.openai.shapes import respelled
from mqlab.server.openai.sinks import ChoiceSink
from mqlab.types import Output, TokenLogprob, Usage


class MakeSink(Protocol):
    """Makes the sink of a choice; see ChoiceSink for the arguments."""

    def __call__(self, owner: Answering, index: int, number: int, reader: ChoiceReader, piece: Piece, times: Times, /) -> ChoiceSink:
        """A sink."""
        ...


class Answering:
    """One answer under way. Its choices are in order: prompt by prompt, each with its n.

    Args:
        name: the answer's id, of which the requests' ids are made.

    Attributes:
        sinks: of the choices.
        scored: logprobs of the prompts by their number, where asked for.
    """

    def __init__(self, front: Frontend, body: Generation, plan: Plan, name: str, meter: Meter, make: MakeSink) -> None:
        self._front = front
        self._body = body
        self._plan = plan
        self._name = name
        self._meter = meter
        self._make = make
        self._news = asyncio.Event()
        self._echoes: dict[int, Echo] = {}
        self._error: Exception | None = None
        self._left = False
        self._open = len(plan.prompts) * plan.params.n
        self._usages: list[Usage] = []
        self.sinks: list[ChoiceSink] = []
        self.scored: dict[int, tuple[TokenLogprob | None, ...]] = {}

    @property
    def over(self) -> bool:
        """Whether nothing comes any more: each choice has ended, or one has failed."""
        return not self._open or self._error is not None

    @property
    def usage(self) -> Usage:
        """Tokens of all prompts."""
        usages = self._usages
        return Usage(
            sum(usage.prompt_tokens for usage in usages),
            sum(usage.completion_tokens for usage in usages),
            sum(usage.cached_tokens for usage in usages),
        )

    async def start(self) -> None:
        """Return when the engine has all requests; what they bring may come before that.

        Raises:
            InvalidRequest, Overloaded, …: see Frontend.generate.
        """
        try:
            jobs = [await self._open_prompt(number, prompt) for number, prompt in enumerate(self._plan.prompts)]
            for number, job in enumerate(jobs):
                self._make_sinks(number, job)
            await self._hand_over()
        except InvalidRequest as error:
            self._meter.fail(error)
            raise respelled(error, self._plan.constraint) from error
        except Exception as error:
            self._meter.fail(error)
            raise

    def leave(self) -> None:
        """Abort what still runs; nothing is shown any more. Idempotent."""
        self._left = True
        for sink in self.sinks:
            sink.leave()
        self.sinks.clear()  # each refers to this: the collector is spared a cycle for every answer
        self._meter.leave()

    async def wait(self) -> None:
        """Return when a choice holds something, or all is over."""
        await self._news.wait()
        self._news.clear()

    @property
    def holds(self) -> bool:
        """Whether a choice holds something."""
        return any(sink.held is not None for sink in self.sinks)

    def release(self) -> None:
        """Show what is held."""
        for sink in self.sinks:
            sink.release()

    def check(self) -> None:
        """Raise what a choice has failed with, if one has."""
        if self._error is not None:
            raise self._error

    # --- what the sinks tell

    def news(self) -> None:
        """See sinks.Owner."""
        self._news.set()

    def note(self, sink: ChoiceSink, output: Output, now: float) -> None:
        """See sinks.Owner."""
        if self._left:
            return
        self._meter.end(sink.index, output, now)
        if output.usage is not None:
            self._usages.append(output.usage)
        if output.prompt_logprobs is not None:
            self.scored[sink.number] = output.prompt_logprobs
        echo = self._echoes.get(sink.number)
        for one in (output,) if echo is None else echo.before(output):
            self._show(sink.number * self._plan.params.n + one.index, one)

    def fail(self, sink: ChoiceSink, error: Exception) -> None:
        """See sinks.Owner."""
        if self.over or self._left:
            return
        self._meter.fail(error)
        if isinstance(error, InvalidRequest):
            error = respelled(self._named(sink.number, error), self._plan.constraint)
        self._error = error
        self._news.set()

    # --- inner workings

    def _show(self, index: int, output: Output) -> None:
        self.sinks[index].show(output)
        if output.finish is not None:
            self._open -= 1
            if not self._open:
                self._news.set()

    async def _open_prompt(self, number: int, prompt: Prompt) -> Job:
        several = len(self._plan.prompts) > 1
        if several:
            await asyncio.sleep(0)  # many prompts take long to tokenise: others have their turns
        try:
            return await self._opened(number, prompt, f"{self._name}-{number}" if several else self._name)
        except InvalidRequest as error:
            raise self._named(number, error) from error

    async def _opened(self, number: int, prompt: Prompt, name: str) -> Job:
        body, params = self._body, self._plan.params
        if body.echoes:
            self._echoes[number], prompt = await Echo.of(self._front, prompt, body.scores, room_for(params))
        return await self._front.open(prompt, params, request_id=name, priority=body.priority, salt=body.cache_salt)

    def _named(self, number: int, error: InvalidRequest) -> InvalidRequest:
        """One of several prompts; its refusal says which."""
        return error if len(self._plan.prompts) == 1 else InvalidRequest(f"prompt[{number}]: {error}")

    def _make_sinks(self, number: int, job: Job) -> None:
        for request in job.requests:
            index = len(self.sinks)
            sink = self._make(self, index, number, job.readers[request.id], self._plan.piece(index), self._meter.choice(index))
            sink.pushing = self._front.client.push(request, sink)
            self.sinks.append(sink)

    async def _hand_over(self) -> None:
        """One alone needs no task. Of several all are in the engine's hands before its next step, as far as the layout can."""
        starts = [sink.pushing.start() for sink in self.sinks if sink.pushing is not None]
        if len(starts) == 1:
            await starts[0]
            return
        for number, result in enumerate(await asyncio.gather(*starts, return_exceptions=True)):
            if isinstance(result, InvalidRequest):
                raise self._named(self.sinks[number].number, result)
            if isinstance(result, BaseException):
                raise result
