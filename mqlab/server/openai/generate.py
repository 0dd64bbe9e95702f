"""The generating routes: plain ASGI, no task but the server's own, for streams and whole answers alike."""

from __future__ import annotations

import secrets
import time
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, TypeVar

import msgspec
from starlette.requests import ClientDisconnect
from starlette.types import Receive, Scope, Send

from mqlab.errors import InvalidRequest
from mqlab.server.errors import ApiError, as_api_error
from mqlab.server.http.connection import Attended, read_body
from mqlab.server.http.line import Line, line_of
from mqlab.server.metrics.meter import Meter
from mqlab.server.openai.answer import Format, Plan
from mqlab.server.openai.answering import Answering, MakeSink
from mqlab.server.openai.fields import check_content_type
from mqlab.server.openai.protocol import MAX_CHOICES, Generation, decode
from mqlab.server.openai.scores import prompt_scores
from mqlab.server.openai.sinks import StreamSink, WholeSink
from mqlab.server.openai.stream import DONE, EVENTS, Chunks, Head, refuse, respond, usage_object
from mqlab.server.state import ServerState
from mqlab.types import SamplingParams

B = TypeVar("B", bound=Generation)

_CLIENT_LEFT = 499
"""What the log of a proxy calls a request whose client went away; nobody receives it."""


@dataclass(frozen=True, slots=True)
class _Job(Generic[B]):
    body: B
    head: Head
    plan: Plan

    @property
    def params(self) -> SamplingParams:
        return self.plan.params


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
                check_content_type(scope)
                job = await self._job(decode(await read_body(receive), self._body))
                answer = self._stream if job.body.stream else self._whole
                line = line_of(scope, receive, send)
                async with Attended(line):
                    status = await answer(job, line)
        except ClientDisconnect:
            status = _CLIENT_LEFT
        except Exception as error:
            refusal = self._refusal(error)
            status = refusal.status
            await refuse(send, refusal)
        self._state.metrics.responses[scope["path"], str(status)] += 1

    async def _job(self, body: B) -> _Job[B]:
        self._state.check_model(body.model)
        head = Head(self._form.prefix + secrets.token_hex(12), int(time.time()), self._state.model)
        plan = self._form.plan(body, (await self._state.front.current()).text)
        self._check_ever_fits(len(plan.prompts) * plan.params.n)
        return _Job(body, head, plan)

    def _check_ever_fits(self, choices: int) -> None:
        """What could not run alone is refused for good: to try it again would not help."""
        limit = min(self._state.most or MAX_CHOICES, MAX_CHOICES)
        if choices > limit:
            raise InvalidRequest(f"n times the number of prompts is {choices}, and at most {limit} may be open at once; ask for fewer")

    def _refusal(self, error: Exception) -> ApiError:
        refusal = as_api_error(error, self._body.__struct_fields__)
        self._state.metrics.rejections[refusal.code or ""] += 1
        return refusal

    def _answering(self, job: _Job[B], make: MakeSink) -> Answering:
        meter = Meter(self._state.metrics, job.params, len(job.plan.prompts))
        return Answering(self._state.front, job.body, job.plan, job.head.id, meter, make)

    async def _whole(self, job: _Job[B], line: Line) -> int:
        answering = self._answering(job, WholeSink)
        try:
            await answering.start()
            while not answering.over:
                await answering.wait()
            answering.check()
            body = self._body_of(job, answering)
        finally:
            answering.leave()
        await respond(line.send, 200, msgspec.json.encode(body))
        return 200

    def _body_of(self, job: _Job[B], answering: Answering) -> dict[str, Any]:
        pieces = [sink.piece for sink in answering.sinks]
        body: dict[str, Any] = {
            "id": job.head.id,
            "object": self._form.object,
            "created": job.head.created,
            "model": job.head.model,
            "system_fingerprint": self._state.fingerprint,
            "choices": [piece.choice() for piece in pieces],
            "usage": usage_object(answering.usage),
        }
        if (width := job.body.prompt_logprobs) is not None:
            scores = {number: prompt_scores(own, width) for number, own in answering.scored.items()}
            self._form.add_prompt_scores(body, [scores.get(piece.index // job.params.n) for piece in pieces])
        return body

    async def _stream(self, job: _Job[B], line: Line) -> int:
        chunks = Chunks(job.head, self._form.chunk_object, job.body.include_usage)
        answering = self._answering(job, partial(StreamSink, line, chunks))
        try:
            await answering.start()
            await self._pump(answering, line)
            await line.end((chunks.usage(answering.usage) if job.body.include_usage else b"") + DONE)
        except Exception as error:
            refusal = self._refusal(error)
            if line.started:  # no end marker follows: the answer is not whole
                await line.end(b"data: " + refusal.body() + b"\n\n")
            else:
                await refuse(line.send, refusal)
            return refusal.status
        finally:
            answering.leave()
        return 200

    async def _pump(self, answering: Answering, line: Line) -> None:
        """Return when all is written but the end. While the line is ready the sinks write by themselves, and this waits.

        The response starts with its first event, so what fails before that can still be an ordinary error.
        """
        while True:
            await answering.wait()
            if not answering.holds:
                answering.check()
            if not line.started:
                await line.start(EVENTS)
            await line.room()
            answering.release()
            await line.flush()
            if answering.over:
                return answering.check()
