"""A running engine, in the notebook: what ``%mqlab serve`` returns."""

from __future__ import annotations

import os
import time
import weakref
from collections.abc import AsyncGenerator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from mqlab.config import EngineConfig, Settings, Timing
from mqlab.errors import ClientClosedError, EngineDeadError
from mqlab.front.prompts import Prompt
from mqlab.lab.hop import hop
from mqlab.lab.host import Host
from mqlab.lab.plots import Plot, plot_throughput
from mqlab.lab.render import session_html
from mqlab.lab.sampler import as_frame
from mqlab.lab.stream import Stream
from mqlab.models.resolve import resolve
from mqlab.probes.pyspy import Capture, record
from mqlab.types import Completion, EngineStats, Health, ModelInfo, Output, SamplingParams
from mqlab.wire.wiring import Wiring

if TYPE_CHECKING:
    import pandas

GLANCE_S = 1.0
"""How long a picture of the session waits for the session's own loop."""

Messages = str | Sequence[Mapping[str, Any]]


class Session:
    """An engine with a live client, for use from any cell.

    The client runs on an event loop in a thread of its own, so nothing depends on the notebook's loop and nothing of it is changed:
    ``await lab.generate(...)`` works under any running loop, ``lab.generate_sync(...)`` works with and without one. A cell that is
    interrupted or cancelled aborts its request and nothing else. ``mq`` and ``v1`` run the engine in a process of its own; under
    ``inproc`` and ``aio`` it runs in this process, on the session's thread, and competes with the kernel for the GIL.

    Dropping the last reference, the end of the interpreter and a kernel restart stop the engine.

    Args:
        wiring: what the engine is wired with; ``Session.of`` makes it from a config.
        topology: layout between client and engine.
        preset: of the topology.
        name: how it calls itself.

    Raises:
        ConfigError, ModelError, EngineStartError: it could not start; nothing is left running.
    """

    def __init__(self, wiring: Wiring, topology: str = "mq", *, preset: str = "best", name: str = "lab") -> None:
        self.name = name
        self.topology = topology
        self._host = Host(topology, wiring, preset)
        self._started = time.monotonic()
        self._finalizer = weakref.finalize(self, self._host.release)

    @staticmethod
    def of(
        config: EngineConfig, topology: str = "mq", *, codec: str = "msgpack", timing: Timing | None = None, name: str = "lab"
    ) -> Session:
        """Serve a real model. It is fetched first where it is a known name and not here yet.

        Raises:
            ConfigError, ModelError, EngineStartError: it could not start; nothing is left running.
        """
        resolve(config.model, Settings.read().cache_dir)
        return Session(Wiring.of(config, codec=codec, timing=timing), topology, name=name)

    # --- generating

    async def generate(self, prompt: Prompt, max_tokens: int | None = 32, **params: Any) -> Completion:
        """The whole answer to text, token ids or chat messages. Cancelling aborts it.

        Args:
            params: further fields of SamplingParams.

        Raises:
            InvalidRequest, RequestFailed: this request only. EngineDeadError: the engine is gone. ClientClosedError: after ``stop``.
        """
        host = self._running()
        return await hop(host.loop, host.front.complete(prompt, _params(max_tokens, params)))

    def generate_sync(self, prompt: Prompt, max_tokens: int | None = 32, **params: Any) -> Completion:
        """``generate`` for code that cannot await; blocks. An interrupt aborts the request."""
        host = self._running()
        return host.thread.run(host.front.complete(prompt, _params(max_tokens, params)))

    def stream(self, prompt: Prompt, max_tokens: int | None = 32, **params: Any) -> Stream:
        """Outputs as they come, for ``async for`` or ``for``; each has new ``text`` and ``tokens``, the last ``finish`` and ``usage``."""
        host = self._running()
        outputs: AsyncGenerator[Output, None] = host.front.generate(prompt, _params(max_tokens, params))
        return Stream(host, outputs)

    async def chat(self, messages: Messages, max_tokens: int | None = 128, **params: Any) -> Completion:
        """The assistant's answer to a conversation, or to a text as the user's only message."""
        return await self.generate(_as_chat(messages), max_tokens, **params)

    def chat_sync(self, messages: Messages, max_tokens: int | None = 128, **params: Any) -> Completion:
        """``chat`` for code that cannot await; blocks."""
        return self.generate_sync(_as_chat(messages), max_tokens, **params)

    # --- looking

    @property
    def info(self) -> ModelInfo:
        """The model and its limits; ``info.pid`` is the engine's process."""
        return self._host.info

    def stats(self) -> EngineStats:
        """Counters and gauges as the engine published them last, read from shared memory: the engine is not asked."""
        return self._running().client.glance()

    def health(self) -> Health:
        """Whether the engine lives and its loop turns; the engine is not asked.

        Raises:
            ClientClosedError: after ``stop``.
        """
        host = self._running()
        return host.thread.run(host.client.check())

    def call(self, method: str, *args: Any, timeout: float | None = 60.0) -> Any:
        """A control call of the engine by name: "start_profile", "stop_profile", "ping", …

        Raises:
            CallError: it failed, or is unknown. CallTimeout: no answer in ``timeout`` seconds. EngineDeadError, ClientClosedError.
        """
        host = self._running()
        return host.thread.run(host.client.call(method, *args, timeout=timeout))

    def throughput(self) -> pandas.DataFrame:
        """Tokens per second, requests and KV cache use since the start, as ``sampler.as_frame`` says; also after ``stop``."""
        samples = self._host.sampler.samples()
        return as_frame(samples if self.stopped else [*samples, self.stats()])

    def plot_throughput(self, since: float = 0.0) -> Plot:
        """``throughput()`` as a picture, from ``since`` seconds after the start on."""
        frame = self.throughput()
        return plot_throughput(frame.loc[frame["seconds"] >= since], f"{self.info.name} over {self.topology}")

    def profile(self, seconds: float = 5.0, *, front: bool = False, folder: str | Path | None = None) -> Capture:
        """Sample the engine's stacks with py-spy while it works. Blocks; ``await asyncio.to_thread(lab.profile, 5)`` does not.

        Args:
            front: sample this process, the front, as well.
            folder: where stacks and flame graph go; by default a new folder in mqlab's cache.

        Raises:
            ProfileError: the capture could not be taken; says what to change. EngineDeadError, ClientClosedError.
        """
        self._ensure_alive()
        targets = {"engine": self.info.pid} | ({"front": os.getpid()} if front and self.info.pid != os.getpid() else {})
        return record(targets, seconds, Path(folder) if folder else _capture_folder())

    def log(self) -> Text:
        """The end of the engine's log. Engines in this process log to this process."""
        lines = self._host.log().split("\n")
        text = "\n".join(line.rpartition("\r")[2] for line in lines)  # of a progress bar, its last state
        return Text(text or f"(no log yet, or {self.topology} logs to this process)")

    # --- ending

    def stop(self) -> None:
        """End the engine, in bounded time; idempotent. Requests that still run get ClientClosedError."""
        self._finalizer()

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
        self.stop()

    # --- showing

    def state(self) -> tuple[str, str]:
        """One word (ready, hung, dead, busy, stopped) and a sentence, empty while all is well."""
        if self.stopped:
            return "stopped", ""
        try:
            health = self._host.check(GLANCE_S)
        except TimeoutError:
            return "busy", f"its event loop did not answer within {GLANCE_S:g} s"
        return health.state, "" if health.ok else health.detail

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
        html = session_html(f"{self.name} = {self.info.name}", state, detail, self._host.client.shape, self._facts())
        return {"text/plain": repr(self), "text/html": html}

    def _facts(self) -> list[tuple[str, str]]:
        info = self.info
        facts = [
            ("topology", self.topology),
            ("model", " ".join(filter(None, (info.name, info.architecture, info.dtype)))),
            ("engine", f"{_where(info)}, up {self.age_s:.0f} s"),
            ("context", f"{info.max_model_len} tokens, KV cache {info.num_blocks} blocks of {info.block_size}"),
        ]
        last = self._host.sampler.samples()[-1] if self.stopped else self.stats()
        load = f"{last.running} running, {last.waiting} waiting, KV cache {last.kv_usage:.0%}"
        return [*facts, ("now" if not self.stopped else "at the end", f"{load}, {last.generation_tokens} tokens generated")]

    # --- inner workings

    def _running(self) -> Host:
        if self.stopped:
            raise ClientClosedError(f"session {self.name} is stopped; %mqlab serve starts another")
        return self._host

    def _ensure_alive(self) -> None:
        health = self.health()
        if not health.ok:
            raise EngineDeadError(health.detail)


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
    return "engine in this process" if info.pid == os.getpid() else f"engine pid {info.pid}"


def _capture_folder() -> Path:
    return Settings.read().cache_dir / "captures" / f"{datetime.now():%Y%m%d-%H%M%S-%f}"
