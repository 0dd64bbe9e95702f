"""A running engine, in the notebook: what ``%mqlab serve`` returns."""

from __future__ import annotations

import asyncio
import time
import weakref
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import replace
from types import TracebackType
from typing import Any, Self

from mqlab.client.contract import Freed
from mqlab.config import EngineConfig, Settings, Timing
from mqlab.errors import CallTimeout, ClientClosedError, EngineDeadError
from mqlab.front.prompts import Prompt
from mqlab.lab.hop import hop
from mqlab.lab.hosted import Hosted
from mqlab.lab.instruments import Instruments
from mqlab.lab.render import session_html
from mqlab.lab.stream import Stream
from mqlab.models.resolve import resolve
from mqlab.notes import log_notes
from mqlab.probes.base import attempt
from mqlab.probes.recording import begin_recording
from mqlab.probes.running import find
from mqlab.record.metadata import write_meta
from mqlab.types import Completion, Embedding, EngineStats, Health, ModelInfo, Output, SamplingParams
from mqlab.wire.wiring import Wiring

GLANCE_S = 1.0
"""How long a picture of the session waits for the session's own loop."""

Messages = str | Sequence[Mapping[str, Any]]


class Session(Instruments):
    """An engine with a live client, for use from any cell.

    The client runs on an event loop in a thread of its own, so nothing depends on the notebook's loop and nothing of it is changed:
    ``await lab.generate(...)`` works under any running loop, ``lab.generate_sync(...)`` works with and without one. A cell that is
    interrupted or cancelled aborts its request and nothing else. ``mq`` and ``v1`` run the engine in a process of its own and their
    client in this one; ``inproc`` and ``aio`` run both in a front process of their own, so that a step never holds up a cell.

    Dropping the last reference, the end of the interpreter and a kernel restart stop the engine.

    Args:
        wiring: what the engine is wired with; ``Session.of`` makes it from a config.
        topology: layout between client and engine.
        preset: of the topology.
        name: how it calls itself.
        record: whether the light probes write down what happens, for the dashboard, metrics and traces.

    Raises:
        ConfigError, ModelError, EngineStartError: it could not start; nothing is left running.
    """

    def __init__(self, wiring: Wiring, topology: str = "mq", *, preset: str = "best", name: str = "lab", record: bool = True) -> None:
        folder = begin_recording(name) if record else None
        self._take(Hosted(topology, wiring, preset, record=folder), topology, name)
        if folder is not None:
            facts = {"topology": topology, "preset": preset, "codec": wiring.codec, "model": self.info.name, "core": str(wiring.core)}
            attempt("meta.json", lambda: write_meta(folder, **facts), None)

    @staticmethod
    def of(
        config: EngineConfig,
        topology: str = "mq",
        *,
        codec: str = "msgpack",
        timing: Timing | None = None,
        name: str = "lab",
        record: bool = True,
    ) -> Session:
        """Serve a real model. It is fetched first where it is a known name and not here yet.

        Raises:
            ConfigError, ModelError, EngineStartError: it could not start; nothing is left running.
        """
        resolve(config.model, Settings.read().cache_dir, load_format=config.load_format)
        log_notes(config)
        session = Session(Wiring.of(config, codec=codec, timing=timing), topology, name=name, record=record)
        session._config = session._began = config
        return session

    @classmethod
    def attach(cls, target: str | int | None = None, *, name: str = "lab") -> Session:
        """A session over an engine that a terminal or another kernel started; its ``stop`` only detaches.

        Args:
            target: pid or URL, as ``%mqlab ps`` shows it; None where only one runs.

        Raises:
            ConfigError: there is none, or more than one. EngineStartError: nobody answers. ModelError: it has no tokenizer.
        """
        entry = find(None if target is None else str(target))
        session = cls.__new__(cls)
        session._take(Hosted.attach(entry), entry.topology, name)
        return session

    def _take(self, hosted: Hosted, topology: str, name: str) -> None:
        super().__init__(hosted, topology, name, None)
        self._began: EngineConfig | None = None
        self._started = time.monotonic()
        self._finalizer = weakref.finalize(self, hosted.release)

    # --- generating

    async def generate(
        self, prompt: Prompt, max_tokens: int | None = 32, *, priority: int = 0, salt: str = "", **params: Any
    ) -> Completion:
        """The whole answer to text, token ids or chat messages. Cancelling aborts it.

        Args:
            priority: under the engine's priority policy the lowest goes first.
            salt: cached prompts are shared among requests of one salt only.
            params: further fields of SamplingParams.

        Raises:
            InvalidRequest, RequestFailed: this request only. EngineDeadError: the engine is gone. ClientClosedError: after ``stop``.
        """
        hosted = self._running()
        return await hop(hosted.thread, hosted.front.complete(prompt, _params(max_tokens, params), priority=priority, salt=salt))

    def generate_sync(self, prompt: Prompt, max_tokens: int | None = 32, *, priority: int = 0, salt: str = "", **params: Any) -> Completion:
        """``generate`` for code that cannot await; blocks. An interrupt aborts the request."""
        hosted = self._running()
        return hosted.thread.run(hosted.front.complete(prompt, _params(max_tokens, params), priority=priority, salt=salt))

    def stream(self, prompt: Prompt, max_tokens: int | None = 32, *, priority: int = 0, salt: str = "", **params: Any) -> Stream:
        """Outputs as they come, for ``async for`` or ``for``; each has new ``text`` and ``tokens``, the last ``finish`` and ``usage``."""
        hosted = self._running()
        outputs: AsyncGenerator[Output, None] = hosted.front.generate(prompt, _params(max_tokens, params), priority=priority, salt=salt)
        return Stream(hosted.thread, outputs)

    async def chat(self, messages: Messages, max_tokens: int | None = 128, **params: Any) -> Completion:
        """The assistant's answer to a conversation, or to a text as the user's only message."""
        return await self.generate(_as_chat(messages), max_tokens, **params)

    def chat_sync(self, messages: Messages, max_tokens: int | None = 128, **params: Any) -> Completion:
        """``chat`` for code that cannot await; blocks."""
        return self.generate_sync(_as_chat(messages), max_tokens, **params)

    async def embed(self, prompt: Prompt, pooling: str = "mean", normalize: bool = True) -> Embedding:
        """Text, token ids or chat messages as a vector: the final hidden states pooled.

        Args:
            pooling: "mean" of all tokens, the "last" token's, or the first one's ("cls").
            normalize: to length 1.

        Raises:
            InvalidRequest: refused; the engine gives no embeddings. Others as ``generate``.
        """
        hosted = self._running()
        return await hop(hosted.thread, hosted.front.embed(prompt, pooling, normalize))

    def embed_sync(self, prompt: Prompt, pooling: str = "mean", normalize: bool = True) -> Embedding:
        """``embed`` for code that cannot await; blocks."""
        hosted = self._running()
        return hosted.thread.run(hosted.front.embed(prompt, pooling, normalize))

    def reset_prefix_cache(self) -> None:
        """Forget all cached prompts, so that the next request finds none; what runs keeps its blocks."""
        hosted = self._running()
        hosted.thread.run(hosted.client.reset_prefix_cache())

    # --- the model

    def load(self, model: str, **options: Any) -> ModelInfo:
        """Serve another model in the same engine; requests that run end with ModelUnavailable. Blocks; see ``profile``.

        Args:
            model: name, folder, GGUF file or hub id.
            options: fields of EngineConfig that are to differ from what the session was started with.

        Raises:
            CallError: it cannot be served; the model that was loaded goes on where that was seen before it went. EngineDeadError,
                ClientClosedError.
        """
        hosted = self._running()
        info = hosted.thread.run(hosted.client.load(model, **options))
        if self._began is not None:
            self._config = replace(self._began, **{"served_model_name": None, **options, "model": model})
        return info

    def unload(self) -> Freed:
        """Free weights and KV memory; the engine stays, without a model. Requests that run end with ModelUnavailable."""
        hosted = self._running()
        return hosted.thread.run(hosted.client.unload())

    def sleep(self, level: int = 1) -> Freed:
        """Free the KV memory, and from level 2 on the weights, until ``wake_up``. Requests that run end with ModelUnavailable."""
        hosted = self._running()
        return hosted.thread.run(hosted.client.sleep(level))

    def wake_up(self) -> ModelInfo:
        """Serve again after ``sleep``; blocks. Raises CallError where no model is loaded, or the memory is there no more."""
        hosted = self._running()
        return hosted.thread.run(hosted.client.wake_up())

    # --- looking

    @property
    def info(self) -> ModelInfo:
        """The model and its limits; ``info.pid`` is the engine's process."""
        return self._hosted.info

    def stats(self) -> EngineStats:
        """Counters and gauges as the engine published them last, read from shared memory: the engine is not asked."""
        return self._running().client.glance()

    def health(self) -> Health:
        """Whether the engine lives and its loop turns; the engine is not asked.

        Raises:
            CallTimeout: the session's loop is stuck.
            ClientClosedError: after ``stop``.
        """
        return self._running().check(GLANCE_S)

    def call(self, method: str, *args: Any, timeout: float | None = 60.0) -> Any:
        """A control call of the engine by name: "start_profile", "stop_profile", "ping", …

        Raises:
            CallError: it failed, or is unknown. CallTimeout: no answer in ``timeout`` seconds. EngineDeadError, ClientClosedError.
        """
        hosted = self._running()
        return hosted.thread.run(hosted.client.call(method, *args, timeout=timeout))

    def log(self) -> Text:
        """The end of the engine's log."""
        lines = self._hosted.log().split("\n")
        text = "\n".join(line.rpartition("\r")[2] for line in lines)  # of a progress bar, its last state
        return Text(text or "(no log yet)")

    @property
    def pids(self) -> dict[str, int]:
        """Its processes by role: ``front`` and ``engine``; under inproc and aio they are one."""
        return self._hosted.pids()

    @property
    def attached(self) -> bool:
        """Whether somebody else runs the engine, so that ``stop`` only detaches."""
        return self._hosted.attached

    @property
    def addresses(self) -> frozenset[str]:
        """What names its engine, beside its variable: pids, and its URL where it has one."""
        return frozenset(filter(None, (str(self._hosted.entry.pid), str(self.info.pid), self._hosted.url)))

    def where(self) -> str:
        """How it is found, in words: pid, and port where there is one."""
        port = f", {self._hosted.url}" if self._hosted.url else ""
        return f"{_where(self.info)}{port}"

    # --- ending

    def stop(self) -> None:
        """End the engine, in bounded time; idempotent. Requests that still run get ClientClosedError. An attached one only detaches."""
        self._finalizer()
        if self._dashboard is not None:
            self._dashboard.close()

    @property
    def stopped(self) -> bool:
        """Whether ``stop`` was called."""
        return not self._finalizer.alive

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stop()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await asyncio.to_thread(self.stop)

    # --- showing

    def state(self) -> tuple[str, str]:
        """One word (ready, unloaded, asleep, loading, hung, dead, busy, stopped) and a sentence, empty while all is well."""
        if self.stopped:
            return "stopped", ""
        try:
            health = self._hosted.check(GLANCE_S)
        except CallTimeout as error:
            return "busy", str(error)
        except ClientClosedError:  # stopped a moment ago, by another thread
            return "stopped", ""
        if not health.ok:
            return health.state, health.detail
        return ("loading" if health.phase == "loading" else self.info.state), ""

    @property
    def age_s(self) -> float:
        """Seconds since it was ready."""
        return time.monotonic() - self._started

    def __repr__(self) -> str:
        state, detail = self.state()
        about = f"{self.name}: {self.info.name} over {self.topology}, {state}" + (f" ({detail})" if detail else "")
        return f"<Session {about}, {_where(self.info)}>"

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, str]:
        state, detail = self.state()
        html = session_html(f"{self.name} = {self.info.name}", state, detail, self._hosted.client.shape, self._facts())
        return {"text/plain": repr(self), "text/html": html}

    def _facts(self) -> list[tuple[str, str]]:
        info = self.info
        pool = f"KV cache {info.num_blocks} blocks of {info.block_size}" if info.state == "ready" else f"no KV cache: {info.state}"
        facts = [
            ("topology", self.topology),
            ("model", " ".join(filter(None, (info.name, info.architecture, info.dtype)))),
            ("engine", f"{_where(info)}, up {self.age_s:.0f} s"),
            ("context", f"{info.max_model_len} tokens, {pool}"),
        ]
        last = self._hosted.sampler.samples()[-1] if self.stopped else self.stats()
        load = f"{last.running} running, {last.waiting} waiting, KV cache {last.kv_usage:.0%}"
        return [*facts, ("now" if not self.stopped else "at the end", f"{load}, {last.generation_tokens} tokens generated")]

    # --- inner workings

    def _running(self) -> Hosted:
        if self.stopped:
            raise ClientClosedError(f"session {self.name} is stopped; %mqlab serve starts another")
        return self._hosted

    def _ensure_not_dead(self) -> None:
        self._running()
        state, detail = self.state()
        if state == "dead":
            raise EngineDeadError(detail)


class Text(str):
    """Text that a cell shows as it is, line by line."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def _params(max_tokens: int | None, params: dict[str, Any]) -> SamplingParams:
    stop = params.get("stop", ())
    if isinstance(stop, str):
        params = {**params, "stop": (stop,)}
    return SamplingParams(max_tokens=max_tokens, **params)


def _as_chat(messages: Messages) -> Prompt:
    return [{"role": "user", "content": messages}] if isinstance(messages, str) else messages


def _where(info: ModelInfo) -> str:
    return f"engine pid {info.pid}"
