"""The only source of cores, codecs, sockets and intervals for a topology. Picklable: it crosses into the engine's process."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from mqlab.config import EngineConfig, Settings, Timing, check
from mqlab.models.echoed import is_echo
from mqlab.wire.codecs import Codec, make_codec
from mqlab.wire.spec import Spec

C = TypeVar("C")

_PLAIN = Spec("mqlab.wire.sockets:plain_class")
_PLAIN_ASYNC = Spec("mqlab.wire.sockets:plain_async_class")


@dataclass(frozen=True)
class Wiring:
    """What a topology is wired with.

    Attributes:
        core: builds the core, in the process that owns it.
        wraps: wrappers of the core (probes, faults), each called with the object inside it, first one innermost.
        codec: name of the codec of every socket.
        output: what a message carries: ``delta`` (new tokens only) or ``cumulative`` (all so far).
        timing: every interval and limit.
        log_stats_interval: seconds between the engine's own log lines; 0 turns them off.
        engine_socket: for ``sync_sockets``: called with the name of an edge, gives what opens the engine's socket of it; with the keyword
            argument ``role`` that of another process.
        front_socket: for ``async_sockets``: the same for the front.
        client_wraps: each called with the client, innermost first, and gives the one to use.
    """

    core: Spec
    wraps: tuple[Spec, ...] = ()
    codec: str = "msgpack"
    output: str = "delta"
    timing: Timing = field(default_factory=Timing)
    log_stats_interval: float = 10.0
    engine_socket: Spec = _PLAIN
    front_socket: Spec = _PLAIN_ASYNC
    client_wraps: tuple[Spec, ...] = ()

    @staticmethod
    def of(config: EngineConfig, *, codec: str = "msgpack", timing: Timing | None = None) -> Wiring:
        """The wiring of an engine that speaks text: the scheduling core over the torch runner or over a simulated device, or an echo with
        a tokenizer.

        Raises:
            ModelError: there is no such tokenizer, for an echo.
        """
        if is_echo(config.model):
            return Wiring._echo_of(config, codec, timing)
        runner = Spec("mqlab.model.either:build", {"config": config})
        finder = Spec("mqlab.model.either:foresee")
        core = Spec("mqlab.engine.engine_core:build", {"config": config, "runner": runner, "finder": finder})
        return Wiring(core, codec=codec, timing=timing or Timing(), log_stats_interval=config.log_stats_interval)

    @staticmethod
    def echo(config: EngineConfig, *, codec: str = "msgpack", timing: Timing | None = None) -> Wiring:
        """The wiring of a core without a model, which answers at once: what is left is the layout's own cost.

        Raises:
            ConfigError: it is to be shared by several processes.
        """
        limit = "is not possible without a model; leave it out, or name one"
        check(config.tensor_parallel_size == 1, config, "tensor_parallel_size", limit)
        passed = ("max_num_seqs", "block_size", "num_scheduler_steps", "async_scheduling", "multi_step_stream_outputs")
        limits = {"max_model_len": config.max_model_len, "num_blocks": config.num_kv_blocks}
        given = {name: value for name, value in limits.items() if value is not None}
        core = Spec("mqlab.engine.echo:build", {name: getattr(config, name) for name in passed} | given)
        return Wiring(core, codec=codec, timing=timing or Timing(), log_stats_interval=config.log_stats_interval)

    @staticmethod
    def _echo_of(config: EngineConfig, codec: str, timing: Timing | None) -> Wiring:
        from mqlab.models.resolve import resolve
        from mqlab.text.tokenizer import Tokenizer

        folder = resolve(config.model, Settings.read().cache_dir, load_format=config.load_format)
        name = config.served_model_name or config.model
        facts = {"name": name, "path": str(folder), "vocab_size": Tokenizer.load(folder).vocab_size}
        wiring = Wiring.echo(config, codec=codec, timing=timing)
        return replace(wiring, core=replace(wiring.core, kwargs={**wiring.core.kwargs, **facts}))

    def recorded(self, folder: Path, front: str = "front") -> Wiring:
        """A copy whose core, sockets and client are metered into a folder; for one client at a time in a process.

        What is set on the copy afterwards stays outside the meters. Read with ``mqlab.probes.recording.Recording``.

        Args:
            front: role of the client's process, under which it writes.
        """
        here = {"folder": folder.resolve()}
        there = {**here, "role": front}
        return replace(
            self,
            core=Spec("mqlab.probes.steps:build", {"core": self.core, "wraps": self.wraps, **here}),
            wraps=(),
            engine_socket=Spec("mqlab.probes.sockets:sync_class", here),
            front_socket=Spec("mqlab.probes.sockets:async_class", there),
            client_wraps=(*self.client_wraps, Spec("mqlab.probes.front:watch", there)),
        )

    @property
    def engine_loop_socket(self) -> Spec:
        """What ``front_socket`` is, for an engine that lives on an event loop."""
        return replace(self.front_socket, kwargs={**self.front_socket.kwargs, "role": "engine"})

    def helping(self, role: str) -> Wiring:
        """A copy for a process beside the engine's: what its sockets count is written under its role."""
        socket = self.engine_socket
        return replace(self, engine_socket=replace(socket, kwargs={**socket.kwargs, "role": role}))

    def build_core(self) -> Any:
        """The core with its wrappers folded around it."""
        core = self.core.build()
        for wrap in self.wraps:
            core = wrap.build(core)
        return core

    def wrap_client(self, client: C) -> C:
        """The client with its wrappers folded around it."""
        for wrap in self.client_wraps:
            client = wrap.build(client)
        return client

    def build_codec(self) -> Codec:
        """A codec for one thread."""
        return make_codec(self.codec, self.output)
