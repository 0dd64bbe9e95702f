"""Offline and synchronous: prompts in, completions out, in order."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import threading
import weakref
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Self, TypeVar

from mqlab.client.contract import EngineClient, Freed
from mqlab.client.sync import Job, LoopThread
from mqlab.config import EngineConfig
from mqlab.errors import CallTimeout, ClientClosedError, ConfigError, InvalidRequest
from mqlab.front.frontend import Frontend
from mqlab.front.progress import Progress
from mqlab.front.prompts import ChatPrompt, Prompt, room_for
from mqlab.notes import log_notes
from mqlab.spelling import suggestion
from mqlab.topologies import make_client
from mqlab.types import Completion, Embedding, EngineStats, ModelInfo, SamplingParams, Tokens
from mqlab.wire.wiring import Wiring

T = TypeVar("T")
A = TypeVar("A", Completion, Embedding)
Conversation = Sequence[Mapping[str, Any]]
Params = SamplingParams | Sequence[SamplingParams] | None

_CLOSE_S = 10.0
"""An engine that is stuck in a step keeps nobody waiting longer; its thread ends with the step."""


class LLM:
    """A model to call from plain code: a script, a notebook cell, a thread inside a running task.

    The engine lives on an event loop in a thread of its own, so nothing here needs or disturbs a loop of the caller's. Not for
    concurrent coroutines: they use ``Frontend``. An interrupt aborts what runs and leaves the LLM usable.

    Args:
        model: known name, folder, GGUF file or hub id.
        topology: layout between client and engine.
        codec: how messages become bytes, where there are any.
        engine_options: fields of EngineConfig.

    Raises:
        ConfigError: an unknown option or a value out of range. ModelError, EngineStartError: the engine cannot start.
    """

    def __init__(self, model: str = "smollm2-135m", *, topology: str = "inproc", codec: str = "msgpack", **engine_options: Any) -> None:
        config = _engine_config(model, engine_options)
        wiring = Wiring.of(config, codec=codec)
        wiring.build_codec()  # a wrong name is refused on layouts, too, that encode nothing
        log_notes(config)
        self._start(make_client(topology, wiring), topology)

    @classmethod
    def of(cls, client: EngineClient) -> Self:
        """An LLM over a client that is not started yet and is owned from now on."""
        llm = cls.__new__(cls)
        llm._start(client, client.shape.name)
        return llm

    def _start(self, client: EngineClient, topology: str) -> None:
        self._topology = topology
        self._loop = LoopThread("mqlab-llm")
        try:
            self._front = self._loop.run(_started(client))
        except BaseException:
            _shut_down(self._loop, client)
            raise
        # After the start: at exit the newest finalizer goes first, and this one must come before those that merely kill the engine.
        self._finalizer = weakref.finalize(self, _shut_down, self._loop, client)

    @property
    def info(self) -> ModelInfo:
        """What the engine says of itself."""
        return self._front.client.info

    def generate(
        self, prompts: str | Sequence[Prompt], params: Params = None, *, use_tqdm: bool = True, priority: int = 0, salt: str = ""
    ) -> list[Completion]:
        """Complete all prompts, batched; completions come in the order of the prompts.

        Args:
            prompts: one text, or a sequence of prompts, each a text, a list of token ids or a list of chat messages.
            params: for all, or one for each prompt; by default SamplingParams().
            use_tqdm: show a bar with requests and tokens per second on stderr.
            priority: of all; under the engine's priority policy the lowest goes first.
            salt: of all; cached prompts are shared among requests of one salt only.

        Raises:
            InvalidRequest: a prompt is refused; the message names its index, and nothing was sent.
            RequestFailed, ModelUnavailable, EngineDeadError, ClientClosedError: the rest was aborted.
        """
        given: list[Prompt] = [prompts] if isinstance(prompts, str) else list(prompts)
        each = _params_for_each(params, len(given))

        def start(index: int, tokens: Tokens) -> Coroutine[Any, Any, Completion]:
            return self._front.complete(tokens, each[index], priority=priority, salt=salt)

        return self._run(_all_of(self._front, given, list(map(room_for, each)), start, use_tqdm))

    def chat(
        self,
        conversations: Conversation | Sequence[Conversation],
        params: Params = None,
        *,
        use_tqdm: bool = True,
        priority: int = 0,
        salt: str = "",
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        chat_template_kwargs: Mapping[str, Any] | None = None,
    ) -> list[Completion]:
        """Answer one conversation, or a list of them: messages with ``role`` and ``content``, by the model's chat template.

        Args:
            tools: that the model is told of, as OpenAI describes them; calls stand in the text as the model writes them.
            add_generation_prompt: open a turn of the assistant.
            continue_final_message: go on with the last message.
            chat_template_kwargs: further variables of the template.

        Raises:
            as ``generate``.
        """
        one = len(conversations) > 0 and isinstance(conversations[0], Mapping)
        talks: Any = [conversations] if one else list(conversations)
        for i, talk in enumerate(talks):
            if isinstance(talk, str) or not all(isinstance(message, Mapping) for message in talk):
                raise InvalidRequest(f"conversations[{i}]={talk!r:.80} is not a list of messages, each with a role and content")
        options = {
            **(chat_template_kwargs or {}),
            "tools": tools,
            "add_generation_prompt": add_generation_prompt and not continue_final_message,
            "continue_final_message": continue_final_message,
        }
        prompts = [ChatPrompt(talk, options) for talk in talks]
        return self.generate(prompts, params, use_tqdm=use_tqdm, priority=priority, salt=salt)

    def embed(
        self,
        prompts: str | Sequence[Prompt],
        pooling: str = "mean",
        normalize: bool = True,
        *,
        use_tqdm: bool = True,
        priority: int = 0,
        salt: str = "",
    ) -> list[Embedding]:
        """All prompts as vectors, batched, in the order of the prompts: their final hidden states pooled.

        Args:
            pooling: "mean" of all tokens, the "last" token's, or the first one's ("cls").
            normalize: to length 1.
            others: as for ``generate``.

        Raises:
            InvalidRequest: the engine gives no embeddings, or as ``generate``. Others as ``generate``.
        """
        given: list[Prompt] = [prompts] if isinstance(prompts, str) else list(prompts)

        def start(index: int, tokens: Tokens) -> Coroutine[Any, Any, Embedding]:
            del index
            return self._front.embed(tokens, pooling, normalize, priority=priority, salt=salt)

        return self._run(_all_of(self._front, given, [0] * len(given), start, use_tqdm))

    def generate_iter(self, prompts: Iterable[Prompt], params: SamplingParams | None = None, *, window: int = 256) -> Iterator[Completion]:
        """Complete prompts as they are pulled from an iterable, endless ones too; completions come in the order of the prompts.

        At most ``window`` prompts are pulled ahead of the completion that is handed out next. Closing the iterator aborts what runs.

        Raises:
            InvalidRequest: a prompt is refused, when its turn comes; the message names its index. ``window`` below 1.
            RequestFailed, EngineDeadError, ClientClosedError.
        """
        if window < 1:
            raise InvalidRequest(f"window={window} must be at least 1: how many requests run at once")
        self._check_usable()
        return self._windowed(prompts, params or SamplingParams(), window)

    def reset_prefix_cache(self) -> None:
        """Forget all cached prompts; what runs keeps its blocks."""
        self._run(self._front.client.reset_prefix_cache())

    def load(self, model: str, **options: Any) -> ModelInfo:
        """Serve another model in the engine that runs; requests that are live end with ModelUnavailable.

        Args:
            options: fields of EngineConfig that are to differ from what the engine was started with.

        Raises:
            CallError: it cannot be served; where that was seen beforehand the model that was loaded goes on, else none is loaded.
        """
        return self._run(self._front.client.load(model, **options))

    def unload(self) -> Freed:
        """Free weights and KV memory; the engine's process stays, and refuses requests until ``load``."""
        return self._run(self._front.client.unload())

    def sleep(self, level: int = 1) -> Freed:
        """Free the KV memory, and from level 2 on the weights; requests are refused until ``wake_up``.

        Raises:
            CallError: no model is loaded, or no such level.
        """
        return self._run(self._front.client.sleep(level))

    def wake_up(self) -> ModelInfo:
        """Serve again after ``sleep``.

        Raises:
            CallError: no model is loaded, or the memory is there no more.
        """
        return self._run(self._front.client.wake_up())

    def stats(self) -> EngineStats:
        """The core's counters and gauges."""
        return self._run(self._front.client.stats())

    def close(self) -> None:
        """Abort what runs, end the engine and the thread. Idempotent."""
        self._finalizer()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def __repr__(self) -> str:
        state = "ready" if self._finalizer.alive else "closed"
        return f"<LLM {self.info.name!r} topology={self._topology} {state}>"

    def _windowed(self, prompts: Iterable[Prompt], params: SamplingParams, window: int) -> Iterator[Completion]:
        jobs: deque[Job[Completion]] = deque()
        try:
            for index, prompt in enumerate(prompts):
                jobs.append(self._loop.submit(_complete(self._front, index, prompt, params)))
                while jobs and (len(jobs) >= window or jobs[0].done):
                    yield jobs.popleft().result()
            while jobs:
                yield jobs.popleft().result()
        finally:
            self._loop.cancel(jobs)

    def _run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        try:
            self._check_usable()
        except ClientClosedError:
            coroutine.close()
            raise
        return self._loop.run(coroutine)

    def _check_usable(self) -> None:
        if not self._finalizer.alive:
            raise ClientClosedError("the LLM is closed; make a new one")


def _engine_config(model: str, options: Mapping[str, Any]) -> EngineConfig:
    known = {field.name for field in dataclasses.fields(EngineConfig)} - {"model"}
    if unknown := sorted(options.keys() - known):
        meant = suggestion(unknown[0], known)
        raise ConfigError(f"LLM does not take {', '.join(unknown)}{meant}; it takes topology, codec, {', '.join(sorted(known))}")
    return EngineConfig(model=model, **options)


def _params_for_each(params: Params, count: int) -> list[SamplingParams]:
    if params is None or isinstance(params, SamplingParams):
        return [params or SamplingParams()] * count
    each = list(params)
    if len(each) != count:
        raise InvalidRequest(f"{len(each)} sampling params for {count} prompts; give one for all, or one for each")
    return each


async def _started(client: EngineClient) -> Frontend:
    await client.start()
    return Frontend.of(client)


async def _all_of(
    front: Frontend, prompts: list[Prompt], rooms: list[int], start: Callable[[int, Tokens], Coroutine[Any, Any, A]], use_tqdm: bool
) -> list[A]:
    encoded = [await _tokenise(front, index, prompt, room) for index, (prompt, room) in enumerate(zip(prompts, rooms, strict=True))]
    with Progress(len(encoded), use_tqdm) as progress:

        async def one(index: int, tokens: Tokens) -> A:
            answer = await start(index, tokens)
            progress.add(answer)
            return answer

        return await _all([one(index, tokens) for index, tokens in enumerate(encoded)])


async def _all(coroutines: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """The results in order; the first failure cancels the rest, and all have ended on return."""
    tasks = [asyncio.create_task(coroutine) for coroutine in coroutines]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _complete(front: Frontend, index: int, prompt: Prompt, params: SamplingParams) -> Completion:
    return await front.complete(await _tokenise(front, index, prompt, room_for(params)), params)


async def _tokenise(front: Frontend, index: int, prompt: Prompt, room: int) -> Tokens:
    try:
        return await front.tokenise(prompt, room=room)
    except InvalidRequest as error:
        raise InvalidRequest(f"prompts[{index}]: {error}") from None


def _shut_down(loop: LoopThread, client: EngineClient) -> None:
    if loop.is_current:  # the collector dropped the LLM on the very thread that must not wait for itself
        threading.Thread(target=_shut_down, args=(loop, client), name="mqlab-llm-close", daemon=True).start()
        return
    with contextlib.suppress(ClientClosedError, CallTimeout):
        loop.run(client.close(), _CLOSE_S)
    loop.close()
