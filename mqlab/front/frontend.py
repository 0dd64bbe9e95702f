"""Text-level use of any client: prompts in, outputs with text out."""

from __future__ import annotations

import asyncio
import itertools
import secrets
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from mqlab.client.base import EngineClient
from mqlab.errors import ModelError
from mqlab.front.choice import ChoiceReader, Tally
from mqlab.front.collect import ChoiceCollector
from mqlab.front.fan import fan_out
from mqlab.front.prompts import Prompt, check_characters, check_length, check_unicode, checked_ids, checked_params, is_chat
from mqlab.front.textmodel import TextModel
from mqlab.types import Choice, Completion, Output, Request, SamplingParams

LONG_TEXT = 8192
"""Characters from which on text is tokenised off the event loop; below, the way to a thread costs more than it saves."""

_SEED_SPAN = 2**64


@dataclass(frozen=True, slots=True)
class _Job:
    """A request with its prompt as ids, a child request for each choice, and a reader for each child that has not ended."""

    id: str
    prompt: list[int]
    requests: list[Request]
    readers: dict[str, ChoiceReader]
    tally: Tally


class Frontend:
    """Templates, tokenises, fans out to choices, detokenises, finds stop strings, counts. All methods on the client's event loop.

    An empty prompt ('' where the tokenizer adds no start token, []) is refused: there is nothing to go on from.
    ``max_tokens=None`` generates up to the context limit.

    Attributes:
        client: a started engine client.
        text: its model's tokenizer and chat template.
    """

    def __init__(self, client: EngineClient, text: TextModel) -> None:
        self.client = client
        self.text = text
        self._prefix = secrets.token_hex(4)
        self._numbers = itertools.count()

    @staticmethod
    def of(client: EngineClient) -> Frontend:
        """The front of a started client, with the tokenizer and template of the model that it serves.

        Raises:
            ModelError: the engine has no model folder, or the folder no readable tokenizer.
        """
        info = client.info
        if not info.path:
            raise ModelError(f"engine {info.name!r} names no model folder, so it has no tokenizer; use its client with token ids")
        return Frontend(client, TextModel.load(Path(info.path)))

    async def generate(self, prompt: Prompt, params: SamplingParams, *, request_id: str | None = None) -> AsyncGenerator[Output, None]:
        """Stream the outputs of all choices, interleaved as they arrive. Leaving early aborts what still runs.

        The engine sees ``request_id`` itself, or ``{request_id}-{i}`` for each of several choices; choice i is drawn with
        seed + i. The last output carries the usage; a token after a stop string is neither reported nor counted.

        Raises:
            InvalidRequest: refused. RequestFailed: died while processed. EngineDeadError, ClientClosedError.
        """
        job = await self._open(prompt, params, request_id)
        readers = job.readers
        async with aclosing(fan_out(self.client, job.requests)) as fan:
            async for delta in fan:
                if (reader := readers.get(delta.id)) is None:
                    continue
                output = reader.read(delta)
                if output.finish is not None:
                    del readers[delta.id]
                    fan.end(delta.id)
                yield output
                if not readers:
                    return

    async def complete(self, prompt: Prompt, params: SamplingParams, *, request_id: str | None = None) -> Completion:
        """The whole answer. Cancelling aborts it.

        Raises:
            as ``generate``.
        """
        job = await self._open(prompt, params, request_id)
        choices = await self._collect(job)
        assert job.tally.usage is not None, "all choices have ended"
        return Completion(id=job.id, prompt_tokens=tuple(job.prompt), choices=choices, usage=job.tally.usage)

    async def _collect(self, job: _Job) -> tuple[Choice, ...]:
        collectors = {name: ChoiceCollector(reader) for name, reader in job.readers.items()}
        choices: list[Choice] = []
        async with aclosing(fan_out(self.client, job.requests)) as fan:
            async for delta in fan:
                collector = collectors.get(delta.id)
                if collector is None or (choice := collector.add(delta)) is None:
                    continue
                choices.append(choice)
                del collectors[delta.id]
                fan.end(delta.id)
                if not collectors:
                    break
        return tuple(sorted(choices, key=lambda choice: choice.index))

    async def encode(self, prompt: Prompt) -> list[int]:
        """Token ids of a prompt: text by the tokenizer, messages by the chat template with the assistant's turn opened.

        Raises:
            InvalidRequest: no prompt, empty, too long for this engine, or refused by the template.
        """
        if isinstance(prompt, str):
            return await self.encode_text(prompt)
        if is_chat(prompt):
            return await self.encode_chat(prompt)  # pyright: ignore[reportArgumentType]
        return checked_ids(prompt, self.client.info)

    async def encode_chat(self, messages: Sequence[Mapping[str, Any]], **options: Any) -> list[int]:
        """Token ids of a conversation. ``options`` are those of ChatTemplate.render; the template prints the start token itself.

        Raises:
            InvalidRequest: refused by the template, or too long.
        """
        return await self.encode_text(self.text.render(messages, **options), add_special_tokens=False)

    async def encode_text(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Token ids of text; long text is tokenised in a thread, and not at all if it cannot fit.

        Raises:
            InvalidRequest: no tokens at all, or too many.
        """
        if len(text) <= LONG_TEXT:
            return self._encode(text, add_special_tokens)
        return await asyncio.to_thread(self._encode, text, add_special_tokens)

    def _encode(self, text: str, add_special_tokens: bool) -> list[int]:
        info = self.client.info
        if len(text) > max(LONG_TEXT, info.max_model_len):
            check_characters(text, self.text.longest_token, info)
        check_unicode(text, "prompt")
        ids = self.text.tokenizer.encode(text, add_special_tokens)
        check_length(len(ids), info)
        return ids

    async def _open(self, prompt: Prompt, params: SamplingParams, request_id: str | None) -> _Job:
        params = checked_params(params)
        if request_id is not None:
            check_unicode(request_id, "request_id")
        ids = await self.encode(prompt)
        name = request_id if request_id is not None else f"{self._prefix}-{next(self._numbers)}"
        tally = Tally(len(ids), params.n)
        requests = [Request(child, ids, own) for child, own in _children(name, params)]
        readers = {one.id: ChoiceReader(name, i, self.text.tokenizer, params, tally) for i, one in enumerate(requests)}
        return _Job(name, ids, requests, readers, tally)


def _children(request_id: str, params: SamplingParams) -> list[tuple[str, SamplingParams]]:
    """Ids and parameters of the child requests."""
    if params.n == 1:
        return [(request_id, params)]
    return [(f"{request_id}-{i}", msgspec.structs.replace(params, n=1, seed=_shifted(params.seed, i))) for i in range(params.n)]


def _shifted(seed: int | None, by: int) -> int | None:
    """``seed + by``, kept in the signed 64-bit range."""
    half = _SEED_SPAN // 2
    return None if seed is None else (seed + by + half) % _SEED_SPAN - half
