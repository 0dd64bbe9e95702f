"""The generating routes: plain ASGI, one task per answer, for streams and whole answers alike."""

from __future__ import annotations

import secrets
import time
from collections.abc import AsyncGenerator, Iterable
from contextlib import aclosing
from dataclasses import dataclass
from typing import Generic, TypeVar

import msgspec
from starlette.requests import ClientDisconnect
from starlette.types import Receive, Scope, Send

from mqlab.errors import InvalidRequest
from mqlab.front.merge import Merged
from mqlab.front.prompts import Prompt, room_for
from mqlab.server.answer import Format, Piece
from mqlab.server.connection import read_body, while_connected
from mqlab.server.echo import Echo
from mqlab.server.errors import ApiError, as_api_error
from mqlab.server.meter import Meter
from mqlab.server.protocol import Generation, decode
from mqlab.server.scores import prompt_scores
from mqlab.server.state import ServerState
from mqlab.server.stream import DONE, Chunks, EventStream, Head, refuse, respond, usage_object
from mqlab.types import Output, SamplingParams, TokenLogprob, Usage

B = TypeVar("B", bound=Generation)
PromptScores = tuple[TokenLogprob | None, ...]

_CLIENT_LEFT = 499
"""What the log of a proxy calls a request whose client went away; nobody receives it."""


@dataclass(frozen=True, slots=True)
class _Job(Generic[B]):
    body: B
    head: Head
    prompts: list[Prompt]
    params: SamplingParams


class Generate(Generic[B]):
    """An ASGI endpoint.

    Args:
        state: what the routes share.
        body: the kind of body that it takes.
        form: the shapes of its prompts and answers.
    """

    def __init__(self, state: ServerState, body: type[B], form: Format[B]) -> None:
        self._state = state
        self._body = body
        self._form = form

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI."""
        try:
            with self._state.call():
                job = self._job(decode(await read_body(receive), self._body))
                answer = self._stream if job.body.stream else self._whole
                status = await while_connected(receive, answer(job, send))
        except ClientDisconnect:
            status = _CLIENT_LEFT
        except Exception as error:
            refusal = self._refusal(error)
            status = refusal.status
            await refuse(send, refusal)
        self._state.metrics.responses[scope["path"], str(status)] += 1

    def _job(self, body: B) -> _Job[B]:
        self._state.check_model(body.model)
        head = Head(self._form.prefix + secrets.token_hex(12), int(time.time()), self._state.model)
        prompts, params = self._form.prompts(body), body.params()
        self._check_ever_fits(len(prompts) * params.n)
        return _Job(body, head, prompts, params)

    def _check_ever_fits(self, choices: int) -> None:
        """What could not run alone is refused for good: to try it again would not help."""
        limit = self._state.front.client.limit
        if limit is not None and choices > limit:
            raise InvalidRequest(f"n times the number of prompts is {choices}, and at most {limit} may be open at once; ask for fewer")

    def _refusal(self, error: Exception) -> ApiError:
        return as_api_error(error, self._body.__struct_fields__)

    async def _whole(self, job: _Job[B], send: Send) -> int:
        pieces = [self._form.piece(job.body, index) for index in range(len(job.prompts) * job.params.n)]
        usages = []
        scored: dict[int, PromptScores] = {}
        async with aclosing(self._outputs(job)) as outputs:
            async for index, output in outputs:
                pieces[index].add(output)
                usages.append(output.usage)
                if output.prompt_logprobs is not None:
                    scored[index // job.params.n] = output.prompt_logprobs
        body = {
            "id": job.head.id,
            "object": self._form.object,
            "created": job.head.created,
            "model": job.head.model,
            "choices": [piece.choice() for piece in pieces],
            "usage": usage_object(_total(usages)),
        }
        if (width := job.body.prompt_logprobs) is not None:
            scores = {number: prompt_scores(own, width) for number, own in scored.items()}
            self._form.add_prompt_scores(body, [scores.get(piece.index // job.params.n) for piece in pieces])
        await respond(send, 200, msgspec.json.encode(body))
        return 200

    async def _stream(self, job: _Job[B], send: Send) -> int:
        events = EventStream(send)
        chunks = Chunks(job.head, self._form.chunk_object, job.body.include_usage)
        pieces: dict[int, Piece] = {}
        usages = []
        try:
            async with aclosing(self._outputs(job)) as outputs:
                async for index, output in outputs:
                    usages.append(output.usage)
                    if (piece := pieces.get(index)) is None:
                        piece = pieces[index] = self._form.piece(job.body, index)
                    if new := b"".join(map(chunks.choice, piece.events(output))):
                        await events.write(new)
            await events.end((chunks.usage(_total(usages)) if job.body.include_usage else b"") + DONE)
        except Exception as error:
            refusal = self._refusal(error)
            await events.fail(refusal)
            return refusal.status
        return 200

    async def _outputs(self, job: _Job[B]) -> AsyncGenerator[tuple[int, Output], None]:
        """All outputs with the index of their choice: prompt by prompt, each with its n."""
        meter = Meter(self._state.metrics, job.params, len(job.prompts))
        try:
            async with aclosing(self._all_prompts(job)) as outputs:
                async for number, output in outputs:
                    index = number * job.params.n + output.index
                    meter.take(index, output)
                    yield index, output
        except Exception as error:
            meter.fail(error)
            raise
        finally:
            meter.leave()

    async def _all_prompts(self, job: _Job[B]) -> AsyncGenerator[tuple[int, Output], None]:
        """The outputs of all prompts with the prompt's number; one alone costs no task."""
        if len(job.prompts) == 1:
            async with aclosing(await self._one(job, 0, job.head.id)) as only:
                async for output in only:
                    yield 0, output
            return
        async with aclosing(Merged({number: self._one_of(job, number) for number in range(len(job.prompts))})) as merged:
            async for pair in merged:
                yield pair

    async def _one_of(self, job: _Job[B], number: int) -> AsyncGenerator[Output, None]:
        """One of several prompts; its refusal says which."""
        try:
            async with aclosing(await self._one(job, number, f"{job.head.id}-{number}")) as outputs:
                async for output in outputs:
                    yield output
        except InvalidRequest as error:
            raise InvalidRequest(f"prompt[{number}]: {error}") from error

    async def _one(self, job: _Job[B], number: int, name: str) -> AsyncGenerator[Output, None]:
        """The outputs of one prompt, to be closed by whoever reads them."""
        front, body, prompt = self._state.front, job.body, job.prompts[number]
        echo = None
        if body.echoes:
            echo, prompt = await Echo.of(front, prompt, body.scores, room_for(job.params))
        outputs = front.generate(prompt, job.params, request_id=name, priority=body.priority, salt=body.cache_salt)
        return outputs if echo is None else echo.before(outputs)


def _total(usages: Iterable[Usage | None]) -> Usage:
    known = [usage for usage in usages if usage is not None]
    return Usage(sum(usage.prompt_tokens for usage in known), sum(usage.completion_tokens for usage in known))
