"""Text-level use of any client: prompts in, outputs with text out."""

from __future__ import annotations

import asyncio
import itertools
import secrets
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

import msgspec

from mqlab.client.contract import EngineClient
from mqlab.client.embed import embed
from mqlab.errors import ModelUnavailable
from mqlab.front.badwords import with_bad_word_ids
from mqlab.front.choice import ChoiceReader, Tally
from mqlab.front.collect import ChoiceCollector
from mqlab.front.current import Current, CurrentText, folder_of
from mqlab.front.fan import fan_out
from mqlab.front.prompts import (
    ChatPrompt,
    Prompt,
    as_chat,
    check_characters,
    check_length,
    check_unicode,
    checked_ids,
    checked_params,
    checked_pooling,
    room_for,
)
from mqlab.front.rendering import render
from mqlab.front.textmodel import TextModel
from mqlab.types import Choice, Completion, Embedding, Output, Request, SamplingParams, Tokens

LONG_TEXT = 8192
"""Characters from which on text, or bad words together, is tokenised off the event loop; below, a thread costs more than it saves."""

_SEED_SPAN = 2**64
_NO_TOKENS = SamplingParams(max_tokens=0)


@dataclass(frozen=True, slots=True)
class Job:
    """A request with its prompt as ids, a child request for each choice, and a reader for each child, by its id."""

    id: str
    prompt: list[int]
    requests: list[Request]
    readers: dict[str, ChoiceReader]
    tally: Tally


class Frontend:
    """Templates, tokenises, fans out to choices, detokenises, finds stop strings, counts. All methods on the client's event loop.

    An empty prompt ('' where the tokenizer adds no start token, []) is refused: there is nothing to go on from.
    ``max_tokens=None`` generates up to the context limit. When the engine's model changes, so do tokenizer and template, from the next
    request on.

    Args:
        client: a started engine client.
        text: its model's tokenizer and chat template; None loads them when they are needed.

    Attributes:
        client: the engine.
    """

    def __init__(self, client: EngineClient, text: TextModel | None = None) -> None:
        self.client = client
        self._current = CurrentText(client, text)
        self._prefix = secrets.token_hex(4)
        self._numbers = itertools.count()

    @staticmethod
    def of(client: EngineClient) -> Frontend:
        """The front of a started client, with the tokenizer and template of the model that it serves, if any.

        Raises:
            ModelError: the engine has no model folder, or the folder no readable tokenizer.
        """
        info = client.info
        return Frontend(client, None if info.state == "unloaded" else TextModel.load(folder_of(info)))

    def use_chat_template(self, source: str) -> None:
        """Print conversations with this template, whatever model is loaded.

        Raises:
            InvalidRequest: it is none.
        """
        self._current.use_chat_template(source)

    @property
    def text(self) -> TextModel:
        """Tokenizer and chat template, as they were needed last.

        Raises:
            ModelUnavailable: no model was served so far.
        """
        return self._current.last

    async def current(self) -> Current:
        """The model that is served now, with its tokenizer and template, which are loaded where they were not needed so far.

        Raises:
            ModelUnavailable: there is none. ModelError: its folder holds no readable tokenizer.
        """
        return await self._current.get()

    async def generate(
        self, prompt: Prompt, params: SamplingParams, *, request_id: str | None = None, priority: int = 0, salt: str = ""
    ) -> AsyncGenerator[Output, None]:
        """Stream the outputs of all choices, interleaved as they arrive. Leaving early aborts what still runs.

        The engine sees ``request_id`` itself, or ``{request_id}-{i}`` for each of several choices; choice i is drawn with
        seed + i. The last output carries the usage; a token after a stop string is neither reported nor counted.

        Args:
            priority: under the engine's priority policy the lowest goes first.
            salt: cached prompts are shared among requests of one salt only.

        Raises:
            InvalidRequest: refused. RequestFailed: died while processed. ModelUnavailable: the engine has no model just now, or the
                prompt is of another one. EngineDeadError, ClientClosedError.
        """
        job = await self.open(prompt, params, request_id=request_id, priority=priority, salt=salt)
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

    async def complete(
        self, prompt: Prompt, params: SamplingParams, *, request_id: str | None = None, priority: int = 0, salt: str = ""
    ) -> Completion:
        """The whole answer. Cancelling aborts it. Arguments and errors are those of ``generate``."""
        job = await self.open(prompt, params, request_id=request_id, priority=priority, salt=salt)
        collectors = {name: ChoiceCollector(reader) for name, reader in job.readers.items()}
        choices = await self._collect(job, dict(collectors))
        assert job.tally.usage is not None, "all choices have ended"
        scored = collectors[job.requests[0].id].prompt_logprobs
        return Completion(id=job.id, prompt_tokens=tuple(job.prompt), choices=choices, usage=job.tally.usage, prompt_logprobs=scored)

    async def _collect(self, job: Job, collectors: dict[str, ChoiceCollector]) -> tuple[Choice, ...]:
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

    async def embed(
        self,
        prompt: Prompt,
        pooling: str = "mean",
        normalize: bool = True,
        *,
        request_id: str | None = None,
        priority: int = 0,
        salt: str = "",
    ) -> Embedding:
        """A prompt as a vector: its final hidden states pooled.

        Args:
            pooling: "mean" of all tokens, the "last" token's, or the first one's ("cls").
            normalize: to length 1.
            others: as for ``generate``.

        Raises:
            InvalidRequest: refused; the engine gives no embeddings. Others as ``generate``.
        """
        how = checked_pooling(pooling, normalize)
        _check_id(request_id)
        tokens = await self.tokenise(prompt, room=0)
        name = self._name(request_id)
        return await embed(self.client, Request(name, tokens.ids, _NO_TOKENS, 0, priority, salt, tokens.epoch, how))

    async def tokenise(self, prompt: Prompt, *, room: int = 1) -> Tokens:
        """A prompt as token ids, bound to the model that they are for: text by the tokenizer, messages by the chat template with the
        assistant's turn opened.

        Args:
            room: new tokens that must fit beside it.

        Raises:
            InvalidRequest: no prompt, empty, too long for this engine, or refused by the template.
            ModelUnavailable: the engine has no model just now, or the ids are of another one.
        """
        return (await self._tokenise(prompt, room))[0]

    async def encode(self, prompt: Prompt) -> list[int]:
        """The token ids of ``tokenise``."""
        return (await self.tokenise(prompt)).ids

    async def encode_chat(self, messages: Sequence[Mapping[str, Any]], **options: Any) -> list[int]:
        """Token ids of a conversation. ``options`` are those of ChatTemplate.render; the template prints the start token itself.

        Raises:
            InvalidRequest: refused by the template, or too long. ModelUnavailable.
        """
        current = await self._current.get()
        return await _encode_text(current, await render(current.text, ChatPrompt(messages, options)), add_special_tokens=False)

    async def encode_text(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Token ids of text; long text is tokenised in a thread, and not at all if it cannot fit.

        Raises:
            InvalidRequest: no tokens at all, or too many. ModelUnavailable.
        """
        return await _encode_text(await self._current.get(), text, add_special_tokens)

    async def _tokenise(self, prompt: Prompt, room: int) -> tuple[Tokens, TextModel]:
        current = await self._current.get()
        epoch = current.info.epoch
        if isinstance(prompt, Tokens):
            if prompt.epoch != epoch:
                raise ModelUnavailable(
                    f"the prompt was tokenised for another model than {current.info.name!r}, which is loaded now; send its text"
                )
            ids = prompt.ids
        elif isinstance(prompt, str):
            ids = await _encode_text(current, prompt, room=room)
        elif (chat := as_chat(prompt)) is not None:
            ids = await _encode_text(current, await render(current.text, chat), False, room)
        else:
            ids = checked_ids(prompt, current.info, room)
        return Tokens(ids, epoch), current.text

    def _name(self, request_id: str | None) -> str:
        return request_id if request_id is not None else f"{self._prefix}-{next(self._numbers)}"

    async def open(
        self, prompt: Prompt, params: SamplingParams, *, request_id: str | None = None, priority: int = 0, salt: str = ""
    ) -> Job:
        """What ``generate`` asks of the engine, and who reads its answers, for whoever pushes them: nothing was sent yet. Arguments and
        errors are those of ``generate``.
        """
        params = checked_params(params)
        _check_id(request_id)
        tokens, text = await self._tokenise(prompt, room_for(params))
        params = await _with_bad_word_ids(params, text)
        name = self._name(request_id)
        tally = Tally(len(tokens.ids), params.n)
        requests = [Request(child, tokens.ids, own, 0, priority, salt, tokens.epoch) for child, own in _children(name, params)]
        readers = {
            one.id: ChoiceReader(name, i, text.tokenizer, params, tally, None if one.params.prompt_logprobs is None else tokens.ids)
            for i, one in enumerate(requests)
        }
        return Job(name, tokens.ids, requests, readers, tally)


async def _encode_text(current: Current, text: str, add_special_tokens: bool = True, room: int = 1) -> list[int]:
    if len(text) <= LONG_TEXT:
        return _encode(current, text, add_special_tokens, room)
    return await asyncio.to_thread(_encode, current, text, add_special_tokens, room)


def _encode(current: Current, text: str, add_special_tokens: bool, room: int) -> list[int]:
    info = current.info
    if len(text) > max(LONG_TEXT, info.max_model_len):
        check_characters(text, current.text.longest_token, info, room)
    check_unicode(text, "prompt")
    ids = current.text.tokenizer.encode(text, add_special_tokens)
    check_length(len(ids), info, room)
    return ids


async def _with_bad_word_ids(params: SamplingParams, text: TextModel) -> SamplingParams:
    if sum(map(len, params.bad_words)) <= LONG_TEXT:
        return with_bad_word_ids(params, text.tokenizer)
    return await asyncio.to_thread(with_bad_word_ids, params, text.tokenizer)


def _check_id(request_id: str | None) -> None:
    if request_id is not None:
        check_unicode(request_id, "request_id")


def _children(request_id: str, params: SamplingParams) -> list[tuple[str, SamplingParams]]:
    """Ids and parameters of the child requests; the prompt, common to all, is scored with the first."""
    if params.n == 1:
        return [(request_id, params)]
    own = [msgspec.structs.replace(params, n=1, seed=_shifted(params.seed, i), prompt_logprobs=None) for i in range(params.n)]
    own[0] = msgspec.structs.replace(own[0], prompt_logprobs=params.prompt_logprobs)
    return [(f"{request_id}-{i}", each) for i, each in enumerate(own)]


def _shifted(seed: int | None, by: int) -> int | None:
    """``seed + by``, kept in the signed 64-bit range."""
    half = _SEED_SPAN // 2
    return None if seed is None else (seed + by + half) % _SEED_SPAN - half
