"""Every setting, frozen, validated once where it is made; the only reader of os.environ.

Each field carries its help text in its metadata: the command line and the magics are generated from these classes.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, get_type_hints

from mqlab.annotations import in_words, is_a
from mqlab.errors import ConfigError

Dtype = Literal["auto", "float32", "bfloat16", "float16"]
DeviceKind = Literal["auto", "cpu", "cuda"]
AttentionBackend = Literal["auto", "triton", "sdpa", "torch", "numba"]
Quantization = Literal["none", "w8a8"]
Policy = Literal["fcfs", "priority"]
LogprobsMode = Literal["raw_logprobs", "processed_logprobs"]
LoadFormat = Literal["auto", "dummy"]
MetricsCompat = Literal["mqlab", "vllm"]
ToolParser = Literal["auto", "hermes", "llama3_json", "none"]

_MOST_GIB = 1 << 20
"""Of memory, more than any machine has: who says more has named bytes, or a unit twice."""


def option(default: Any, help: str, *, repr: bool = True, **extra: Any) -> Any:
    """A config field with its help text; ``extra`` may hold ``choices``, ``nargs``, ``metavar``, and ``section``, a heading from this
    field on."""
    return field(default=default, repr=repr, metadata={"help": help, **extra})


def check(ok: bool, owner: object, name: str, limit: str) -> None:
    """Refuse a setting.

    Raises:
        ConfigError: names the setting, the limit, and its value unless that is a secret.
    """
    if not ok:
        flag = "--" + name.replace("_", "-")
        value = "…" if name in secrets_of(owner) else repr(getattr(owner, name))
        raise ConfigError(f"{flag}={value} {limit}")


def secrets_of(settings: Any) -> frozenset[str]:
    """The fields of a settings object that are written down nowhere: those without a place in its repr."""
    return frozenset(one.name for one in fields(settings) if not one.repr)


def check_types(settings: Any) -> None:
    """Hold every field of a settings class to its annotation.

    Raises:
        ConfigError: names the first field whose value is of another type, or none of its choices.
    """
    choices = {one.name: one.metadata.get("choices") for one in fields(settings)}
    for name, kind in get_type_hints(type(settings)).items():
        known = choices.get(name)
        limit = f"is not valid: it must be {in_words(kind)}" if known is None else f"is unknown; it is one of {', '.join(known)}"
        check(is_a(getattr(settings, name), kind), settings, name, limit)


def _check_at_least(owner: object, low: float, *names: str) -> None:
    for name in names:
        value = getattr(owner, name)
        check(value is None or value >= low, owner, name, f"must be at least {low:g}")


@dataclass(frozen=True, kw_only=True)
class EngineConfig:
    """The core: model and memory. Names are vLLM's where vLLM has them."""

    model: str = option("smollm2-135m", "model name, local Hugging Face folder, GGUF file, hub id, sim:<model>@<device>, or echo: no model")
    served_model_name: str | None = option(None, "name that clients use; the model's own by default", usual=True)
    dtype: Dtype = option(
        "auto",
        "type of weights and KV; auto is float32 on a CPU, bfloat16 on a GPU",
        choices=("auto", "float32", "bfloat16", "float16"),
        usual=True,
    )
    load_format: LoadFormat = option("auto", "weights of the model, or dummy ones for its shape", choices=("auto", "dummy"))
    max_model_len: int | None = option(None, "prompt and new tokens together; the model's own limit by default", usual=True)
    block_size: int = option(16, "tokens per KV block")
    num_kv_blocks: int | None = option(None, "KV blocks; by default as many as --kv-cache-gb, or a GPU's memory, holds")
    kv_cache_gb: float | None = option(None, "GiB of the KV cache; 1 on a CPU, what a GPU has left", usual=True)
    gpu_memory_utilization: float | None = option(
        None, "share of a (simulated) GPU's memory for weights, activations and KV cache together, 0.9 by default; a CPU has --kv-cache-gb"
    )
    num_threads: int = option(0, "torch threads of each process of the engine; 0 shares the physical cores out among them")
    seed: int = option(0, "seed for requests that bring none")
    max_logprobs: int = option(20, "logprobs that a request may ask for; -1 sets no limit")
    logprobs_mode: LogprobsMode = option(
        "raw_logprobs", "logprobs of the model, or of what is drawn from", choices=("raw_logprobs", "processed_logprobs")
    )
    log_stats_interval: float = option(10.0, "seconds between the engine's own log lines; 0 turns them off")
    max_num_seqs: int = option(64, "sequences in one step at most", section="Scheduling and prefix cache", usual=True)
    max_num_batched_tokens: int = option(1024, "tokens in one step at most: the budget that chunked prefill shares with decode", usual=True)
    scheduling_policy: Policy = option("fcfs", "who goes first: by arrival, or by the requests' priority", choices=("fcfs", "priority"))
    num_scheduler_steps: int = option(
        1, "decode steps that one schedule runs; more than one is multi-step scheduling, vLLM 0.6", usual=True
    )
    multi_step_stream_outputs: bool = option(True, "a message for each token of a multi-step schedule; off, one for all of them")
    async_scheduling: bool = option(False, "plan and launch the next step while one is on the device")
    enable_chunked_prefill: bool = option(True, "share the token budget between prompts and decode; always on")
    enable_prefix_caching: bool = option(True, "keep the KV blocks of prompts for later requests that begin alike", usual=True)
    device: DeviceKind = option(
        "auto",
        "where the model runs; auto takes a GPU where there is one",
        choices=("auto", "cpu", "cuda"),
        section="Device and parallelism",
        usual=True,
    )
    attention_backend: AttentionBackend = option(
        "auto",
        "kernels of attention and around it: triton on a GPU, numba on a CPU; sdpa and torch run on both, for comparison",
        choices=("auto", "triton", "sdpa", "torch", "numba"),
    )
    enforce_eager: bool = option(False, "run every step kernel by kernel, without CUDA graphs")
    cuda_graph_sizes: tuple[int, ...] = option(
        (),
        "decode batch sizes to capture, those above --max-num-seqs left out; by default 1, 2, 4, 8 and on by eights to it",
        nargs="+",
        metavar="SIZE",
    )
    torch_compile: bool = option(False, "fuse what lies between the kernels with torch.compile: minutes at start")
    quantization: Quantization = option(
        "none",
        "of weights and activations on a GPU, or with --attention-backend torch or sdpa: none, or int8 products",
        choices=("none", "w8a8"),
    )
    tensor_parallel_size: int = option(1, "processes that share the model, on GPUs or CPU", usual=True, aliases=("-tp", "--tp-size"))
    num_speculative_tokens: int = option(
        0, "tokens guessed from the text so far and verified in one step; 0 is off", section="Speculation by n-gram lookup", usual=True
    )
    prompt_lookup_max: int = option(4, "longest run of last tokens that a guess looks for in the text so far")
    prompt_lookup_min: int = option(2, "shortest such run")

    def __post_init__(self) -> None:
        check_types(self)
        _check_at_least(self, 2, "max_model_len")
        _check_at_least(self, 1, "block_size", "num_kv_blocks", "max_num_seqs", "max_num_batched_tokens", "num_scheduler_steps")
        _check_at_least(self, 0, "num_threads", "log_stats_interval", "num_speculative_tokens")
        _check_at_least(self, 1, "prompt_lookup_min", "tensor_parallel_size")
        check(all(size >= 1 for size in self.cuda_graph_sizes), self, "cuda_graph_sizes", "must each be at least 1")
        least = self.prompt_lookup_min
        check(self.prompt_lookup_max >= least, self, "prompt_lookup_max", f"must be at least --prompt-lookup-min ({least})")
        _check_at_least(self, -1, "max_logprobs")
        size = self.kv_cache_gb
        check(size is None or 0 < size < _MOST_GIB, self, "kv_cache_gb", f"must be above 0 and below {_MOST_GIB}: it is in GiB, 4 is 4 GiB")
        check(bool(self.model), self, "model", "must not be empty")
        check(
            self.max_num_batched_tokens >= self.max_num_seqs,
            self,
            "max_num_batched_tokens",
            f"must be at least --max-num-seqs ({self.max_num_seqs}), or a full decode step would not fit",
        )
        self._check_fixed()

    def _check_fixed(self) -> None:
        """What other engines let one choose and this one does not."""
        chunked = self.enable_chunked_prefill
        check(
            chunked, self, "enable_chunked_prefill", "is not possible: this scheduler has no other way to run prompts; leave the flag out"
        )
        share = self.gpu_memory_utilization
        check(share is None or 0 < share <= 1, self, "gpu_memory_utilization", "must be in (0, 1]: 0.9 is 90 %")

    @property
    def memory_share(self) -> float:
        """Of a GPU's memory, what an engine takes: what was asked for, or vLLM's default."""
        return 0.9 if self.gpu_memory_utilization is None else self.gpu_memory_utilization


@dataclass(frozen=True, kw_only=True)
class Timing:
    """Timing: every interval and limit between a client and its engine, in seconds."""

    start_timeout: float = option(600.0, "the engine must be ready within this", usual=True)
    health_interval: float = option(1.0, "how often the client looks at the engine's step stamp")
    step_limit: float = option(60.0, "a step that lasts longer counts as a hang")
    stopped_limit: float = option(3.0, "an engine process that is stopped (SIGSTOP) for longer counts as dead")
    idle_interval: float = option(1.0, "how often an idle engine stamps its page")
    stop_grace: float = option(1.0, "time for an orderly stop before the engine is killed")

    def __post_init__(self) -> None:
        check_types(self)
        for one in fields(self):
            check(getattr(self, one.name) > 0, self, one.name, "must be above 0")


@dataclass(frozen=True, kw_only=True)
class ServerConfig:
    """The HTTP front."""

    host: str = option("127.0.0.1", "address to listen on", usual=True)
    port: int = option(8000, "port to listen on; 0 takes a free one and prints it", usual=True)
    uds: str | None = option(None, "listen on a unix socket at this path, and on no port", metavar="PATH", usual=True)
    topology: str = option("v1", "layout between client and engine: a name, or a .py file of your own", usual=True)
    codec: str = option("msgpack", "how a message becomes bytes", choices=("msgpack", "pickle"))
    api_server_count: int = option(
        1, "front processes that share the port, over one engine core; more than one need topology v1", usual=True
    )
    record: bool = option(True, "let the light probes write down what happens, into mqlab's cache: for dashboards, metrics, traces")
    metrics_compat: MetricsCompat = option("mqlab", "whose prefix the metrics' names have", choices=("mqlab", "vllm"))
    disable_log_requests: bool = option(True, "log no requests; always on")
    limit_concurrency: int | None = option(
        None,
        "requests that may be open at once, running or waiting, a choice of n counting as one; more get 503 and a retry hint",
        section="Admission and streams",
        usual=True,
    )
    max_pending: int | None = option(None, "requests that may wait for the engine; more get 503 and a retry hint")
    limit_per_key: int | None = option(None, "requests that one API key may have open at once; more get 429 and a retry hint")
    max_body_mb: float = option(64.0, "MiB that the body of a request may have; a longer one gets 413")
    max_unsent_kb: int = option(256, "KiB of a stream that wait for a slow reader; what comes later is kept as token ids and sent at once")
    keep_alive: int = option(75, "seconds that an idle connection stays open; more than clients' pools keep theirs")
    drain_timeout: float = option(5.0, "seconds that open streams get when the server stops", usual=True)
    api_key: tuple[str, ...] = option(
        (),
        "keys, any of which a request must bring; also MQLAB_API_KEY",
        nargs="+",
        metavar="KEY",
        section="Access",
        repr=False,
        usual=True,
    )
    enable_control: bool = option(
        False, "serve the routes that steer the engine (profile, sleep, load, reset); beyond this machine only with keys", usual=True
    )
    allowed_origins: tuple[str, ...] = option((), "web pages that may call this server (CORS); * for all", nargs="+", metavar="ORIGIN")
    ssl_certfile: str | None = option(None, "certificate, with its chain (PEM): serve https", metavar="PATH")
    ssl_keyfile: str | None = option(None, "the certificate's key (PEM)", metavar="PATH")
    chat_template: str | None = option(None, "file with another chat template than the model's", metavar="PATH", section="Chats and tools")
    tool_call_parser: ToolParser = option(
        "auto", "how the model writes a call of a tool; auto reads its chat template", choices=("auto", "hermes", "llama3_json", "none")
    )

    def __post_init__(self) -> None:
        check_types(self)
        check(self.disable_log_requests, self, "disable_log_requests", "is not possible: requests are never logged; leave the flag out")
        check(0 <= self.port <= 65535, self, "port", "must be in [0, 65535]; 0 takes a free one")
        _check_at_least(self, 0, "drain_timeout", "max_pending", "keep_alive")
        for name in ("limit_concurrency", "limit_per_key", "max_body_mb"):
            value = getattr(self, name)
            check(value is None or value > 0, self, name, "must be above 0, or left out")
        _check_at_least(self, 1, "api_server_count", "max_unsent_kb")
        many, core = self.api_server_count > 1, self.topology == "v1"
        check(core or not many, self, "api_server_count", f"needs --topology v1, not {self.topology!r}: only its core serves several")
        with_key, with_cert = self.ssl_keyfile is not None, self.ssl_certfile is not None
        check(with_key or not with_cert, self, "ssl_certfile", "needs --ssl-keyfile, too")
        check(with_cert or not with_key, self, "ssl_keyfile", "needs --ssl-certfile, too")
        sound = all(key.isascii() and key.isprintable() and key.replace(",", " ").split() == [key] for key in self.api_key)
        check(sound, self, "api_key", "must be printable ASCII without spaces and commas, at least one character each")


@dataclass(frozen=True, kw_only=True)
class Torchrun:
    """What torchrun tells each of the processes that it starts.

    Attributes:
        rank: of this one, among ``world_size``.
        local_rank: on this machine, among ``local_world_size``.
        master_addr: the host of rank 0, and master_port: of the store there.
        hosts_store: whether rank 0 is to open that store, as where something else than torchrun has set all this.
        attempt: how often torchrun has started them before.
        launched: torchrun's own launcher did so, with whose end this process is to end.
    """

    rank: int
    world_size: int
    local_rank: int
    local_world_size: int
    master_addr: str
    master_port: int
    hosts_store: bool = False
    attempt: int = 0
    launched: bool = False

    @staticmethod
    def read() -> Torchrun | None:
        """None where nobody has set RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT.

        Raises:
            ConfigError: one of them is no number, or the rank is none of this world.
        """
        if not all(os.environ.get(name) for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")):
            return None
        rank, size = _number("RANK"), _number("WORLD_SIZE")
        if not rank < size:
            raise ConfigError(f"RANK={rank} must be below WORLD_SIZE={size}; start with torchrun, or unset both")
        return Torchrun(
            rank=rank,
            world_size=size,
            local_rank=_number("LOCAL_RANK", rank),
            local_world_size=_number("LOCAL_WORLD_SIZE", size),
            master_addr=os.environ["MASTER_ADDR"],
            master_port=_number("MASTER_PORT"),
            hosts_store=os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True",
            attempt=_number("TORCHELASTIC_RESTART_COUNT", 0),
            launched="TORCHELASTIC_RUN_ID" in os.environ,
        )


def check_ranks(config: EngineConfig, torchrun: Torchrun) -> None:
    """See that torchrun has started one process for each rank.

    Raises:
        ConfigError: it has started more, or fewer.
    """
    size = torchrun.world_size
    check(config.tensor_parallel_size == size, config, "tensor_parallel_size", f"must be {size}, the number of processes of torchrun")


def _number(name: str, default: int = 0) -> int:
    text = os.environ.get(name) or str(default)
    if not text.isdigit():
        raise ConfigError(f"{name}={text!r} must be a number; start with torchrun, or unset it")
    return int(text)


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What the environment says.

    Attributes:
        torchrun: where this process is one of several that torchrun has started.
    """

    cache_dir: Path
    runtime_dir: Path
    openai_api_key: str | None = field(default=None, repr=False)
    api_keys: tuple[str, ...] = field(default=(), repr=False)
    torchrun: Torchrun | None = None

    @staticmethod
    def read() -> Settings:
        """MQLAB_CACHE (converted models; default ~/.cache/mqlab), MQLAB_RUNTIME (sockets; default the temp folder), OPENAI_API_KEY,
        MQLAB_API_KEY (keys of ``mqlab serve``, separated by commas), and what torchrun sets (RANK, WORLD_SIZE, MASTER_ADDR, …)."""
        cache = os.environ.get("MQLAB_CACHE") or Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "mqlab"
        runtime = Path(os.environ.get("MQLAB_RUNTIME") or "/tmp")
        keys = tuple(key.strip() for key in os.environ.get("MQLAB_API_KEY", "").split(",") if key.strip())
        openai_key = os.environ.get("OPENAI_API_KEY") or None
        return Settings(cache_dir=Path(cache), runtime_dir=runtime, openai_api_key=openai_key, api_keys=keys, torchrun=Torchrun.read())


def environment_of_checks(runtime: Path) -> dict[str, str]:
    """This process's environment, for a child that runs checks: with a runtime folder of its own, without what steers other pytests."""
    plain = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    return {**plain, "MQLAB_RUNTIME": str(runtime)}


def environment_of_server(api_keys: tuple[str, ...]) -> dict[str, str]:
    """This process's environment, for a server that is started from it: with these keys, which a command line would show to everybody."""
    return {**os.environ, "MQLAB_API_KEY": ",".join(api_keys)} if api_keys else dict(os.environ)


def calm_openmp() -> None:
    """Keep idle OpenMP threads from spinning for long; call before torch is imported, for libgomp reads the variable once.

    On a machine with other busy processes each parallel region would otherwise cost a scheduler slice (8 ms instead of 0.3 ms).
    """
    os.environ.setdefault("GOMP_SPINCOUNT", "2000")


def interpret_triton() -> None:
    """Let Triton's kernels run in its interpreter from now on in this process; call before triton is imported."""
    os.environ["TRITON_INTERPRET"] = "1"


def leave_nccl_errors() -> None:
    """Let torch not abort this process for an error of NCCL, unless the environment says what it is to do; call before the first group of
    it. That a rank is gone is found out, and told, without it."""
    os.environ.setdefault("TORCH_NCCL_ASYNC_ERROR_HANDLING", "0")


def environment_of_jobs() -> dict[str, str]:
    """This process's environment, for a child that finds out itself whether Triton is to be interpreted there."""
    return {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
