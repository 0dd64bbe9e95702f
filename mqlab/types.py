"""The vocabulary: what crosses from a client to a core and back.

Commands go in, Events come out. All are msgspec structs, laid out as arrays and tagged, so that a message is small and one
decoder takes every kind. A request carries token ids and numbers, never a callable. Requests, calls and events name the
client they belong to, so that several front processes can share one core.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated, Any, Literal

import msgspec

from mqlab.errors import InvalidRequest

TokenId = Annotated[int, msgspec.Meta(ge=0, lt=2**31)]

Finish = Literal["stop", "length", "abort", "error"]
"""Why a sequence ended: an end or stop token (or string), a length limit, an abort, a failure."""

MAX_N = 16384


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How tokens are chosen and when a request ends. Names and ranges are vLLM's.

    Attributes:
        n: choices per prompt, each a request of its own in the core (seed + i), in [1, 16384].
        temperature: in [0, 2]; below 1e-5 it is greedy.
        top_p: keep the smallest set of tokens with this share of probability, in (0, 1].
        top_k: keep the k likeliest tokens; 0 or -1 keeps all.
        seed: the tokens of a seeded request depend on this alone, never on its neighbours.
        max_tokens: new tokens at most; None means up to the context limit.
        min_tokens: end tokens and stop ids are masked before this many new tokens.
        stop: strings that end the text; found by the front, so the core overshoots.
        stop_token_ids: token ids that end the request; the id is in ``tokens``, its text is not in the text.
        include_stop_str_in_output: keep the stop string in the text.
        ignore_eos: go on after the model's end token.
        skip_special_tokens: leave special tokens out of the text.

    Raises:
        InvalidRequest: a value is out of its range; the message names field, value and limit.
    """

    n: int = 1
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int | None = None
    max_tokens: int | None = 16
    min_tokens: int = 0
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    skip_special_tokens: bool = True

    def __post_init__(self) -> None:
        _require(1 <= self.n <= MAX_N, "n", self.n, f"must be in [1, {MAX_N}]")
        in_range = math.isfinite(self.temperature) and 0 <= self.temperature <= 2
        _require(in_range, "temperature", self.temperature, "must be in [0, 2]; 0 is greedy")
        _require(0 < self.top_p <= 1, "top_p", self.top_p, "must be in (0, 1]; 1 turns it off")
        _require(self.top_k >= -1, "top_k", self.top_k, "must be at least 1, or 0 or -1 to turn it off")
        _require(self.seed is None or -(2**63) <= self.seed < 2**63, "seed", self.seed, "must fit in 64 bits")
        enough = self.max_tokens is None or self.max_tokens >= 1
        _require(enough, "max_tokens", self.max_tokens, "must be at least 1, or None for the context limit")
        _require(self.min_tokens >= 0, "min_tokens", self.min_tokens, "must be at least 0")
        if self.max_tokens is not None:
            _require(self.min_tokens <= self.max_tokens, "min_tokens", self.min_tokens, f"must not exceed max_tokens ({self.max_tokens})")
        _require(all(self.stop), "stop", self.stop, "must not hold an empty string")
        _require(all(i >= 0 for i in self.stop_token_ids), "stop_token_ids", self.stop_token_ids, "must be token ids, 0 or above")

    @property
    def greedy(self) -> bool:
        """Whether the likeliest token is always taken."""
        return self.temperature < 1e-5 or self.top_k == 1


def _require(ok: bool, field: str, value: object, limit: str) -> None:
    if not ok:
        raise InvalidRequest(f"{field}={value!r} {limit}")


class Request(msgspec.Struct, frozen=True, tag="r", array_like=True, gc=False):
    """Generate from a prompt.

    Attributes:
        id: unique among the client's live requests.
        prompt: token ids, at least one.
        params: ``n`` and ``stop`` are the front's business; the core ignores them.
        client: index of the front process that asks.
    """

    id: str
    prompt: Sequence[TokenId]
    params: SamplingParams
    client: int = 0


class Abort(msgspec.Struct, frozen=True, tag="a", array_like=True, gc=False):
    """Forget these requests; unknown ids are ignored."""

    ids: tuple[str, ...]
    client: int = 0


class Call(msgspec.Struct, frozen=True, tag="c", array_like=True):
    """A control call by name: stats, start_profile, …; answered by a Reply with the same ``id``."""

    id: int
    method: str
    args: tuple[Any, ...] = ()
    client: int = 0


Command = Request | Abort | Call


class Failure(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Why one request failed: ``invalid`` was refused when added, ``failed`` died while being processed."""

    kind: Literal["invalid", "failed"]
    message: str


class Delta(msgspec.Struct, array_like=True, omit_defaults=True, gc=False):
    """What one request gained in one step.

    Attributes:
        tokens: new token ids only, in order.
        finish: set on the last delta of a request.
        stop_reason: the stop token id that ended it, None for the model's own end token.
        error: set with ``finish="error"``.
        text: filled only by layouts that detokenise on the engine's side.
    """

    id: str
    tokens: list[int]
    finish: Finish | None = None
    stop_reason: int | None = None
    error: Failure | None = None
    text: str | None = None


class Step(msgspec.Struct, tag="s", array_like=True, gc=False):
    """All deltas of one engine step for one client."""

    deltas: list[Delta]
    client: int = 0


class Reply(msgspec.Struct, frozen=True, tag="y", array_like=True):
    """The answer to a Call: a value, or the text of what went wrong."""

    id: int
    value: Any = None
    error: str | None = None
    client: int = 0


class Dead(msgspec.Struct, frozen=True, tag="d", array_like=True, gc=False):
    """The core's last word, to every client."""

    cause: str
    traceback: str = ""


Event = Step | Reply | Dead


class ModelInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What a client must know of the engine behind it; sent with the handshake.

    Attributes:
        name: the name it is served under.
        path: local folder with config.json and tokenizer.json; empty for engines without a model.
        max_model_len: prompt and new tokens together, at most.
        max_prompt_len: the longest prompt that can ever be admitted (context and KV pool both considered).
        eos_token_ids: tokens that end a request unless ``ignore_eos``.
        num_blocks: KV blocks in the pool.
        block_size: tokens a block.
        pid: the process that owns the core.
    """

    name: str
    path: str = ""
    architecture: str = ""
    dtype: str = ""
    vocab_size: int
    max_model_len: int
    max_prompt_len: int
    eos_token_ids: tuple[int, ...] = ()
    num_blocks: int = 0
    block_size: int = 0
    pid: int = 0


class EngineStats(msgspec.Struct, frozen=True, kw_only=True):
    """Counters and gauges of a core at one moment; counters only grow.

    Attributes:
        stamp_ns: CLOCK_MONOTONIC when taken.
        finished: ended requests by reason.
    """

    stamp_ns: int = 0
    steps: int = 0
    running: int = 0
    waiting: int = 0
    blocks_used: int = 0
    blocks_total: int = 0
    prompt_tokens: int = 0
    generation_tokens: int = 0
    preemptions: int = 0
    finished: dict[str, int] = {}

    @property
    def kv_usage(self) -> float:
        """Share of the KV pool in use, 0 to 1."""
        return self.blocks_used / self.blocks_total if self.blocks_total else 0.0


class Health(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of the engine: is the process alive, does its loop turn, what phase is it in and for how long.

    Attributes:
        state: ``ready`` serves; ``dead`` is gone; ``hung`` exceeded the limit of its phase.
        phase: what its loop is doing: loading, idle, step, call.
        phase_age_s: seconds since that phase began.
    """

    state: Literal["ready", "dead", "hung"]
    detail: str = ""
    phase: str = ""
    phase_age_s: float = 0.0

    @property
    def ok(self) -> bool:
        """Whether requests can be served."""
        return self.state == "ready"


class Usage(msgspec.Struct, frozen=True):
    """Tokens of one request, over all its choices."""

    prompt_tokens: int
    completion_tokens: int

    @property
    def total_tokens(self) -> int:
        """Both together."""
        return self.prompt_tokens + self.completion_tokens


class Output(msgspec.Struct, frozen=True, kw_only=True):
    """What one choice of a request gained: new text and new tokens.

    Attributes:
        id: the request's id, common to its choices.
        index: which of the ``n`` choices.
        text: new text; whole characters only, held back while it may begin a stop string.
        tokens: new token ids.
        finish: set on the last output of a choice.
        stop_reason: the stop string or stop token id that ended it.
        usage: set on the very last output of the request.
    """

    id: str
    index: int
    text: str
    tokens: tuple[int, ...]
    finish: Finish | None = None
    stop_reason: str | int | None = None
    usage: Usage | None = None


class Choice(msgspec.Struct, frozen=True, kw_only=True):
    """One whole choice."""

    index: int
    text: str
    tokens: tuple[int, ...]
    finish: Finish
    stop_reason: str | int | None = None


class Completion(msgspec.Struct, frozen=True, kw_only=True):
    """A finished request with all its choices."""

    id: str
    prompt_tokens: tuple[int, ...]
    choices: tuple[Choice, ...]
    usage: Usage

    @property
    def text(self) -> str:
        """The first choice's text."""
        return self.choices[0].text


class Edge(msgspec.Struct, frozen=True):
    """A channel between two processes of a topology, as drawn: from, to, mechanism, what it carries.

    Attributes:
        name: of its socket, as counters and events call it: the last part of the ipc path.
    """

    source: str
    target: str
    channel: str
    carries: str
    name: str = ""


class Shape(msgspec.Struct, frozen=True):
    """A topology as a picture: its processes with their threads, and the channels between them."""

    name: str
    processes: tuple[tuple[str, tuple[str, ...]], ...]
    edges: tuple[Edge, ...] = ()
