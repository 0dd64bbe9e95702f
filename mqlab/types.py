"""The vocabulary: what crosses from a client to a core and back.

Commands go in, Events come out. All are msgspec structs, laid out as arrays and tagged, so that a message is small and one
decoder takes every kind. A request carries token ids and numbers, never a callable. Requests, calls and events name the
client they belong to, so that several front processes can share one core.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

import msgspec

from mqlab.logprobs import Logprobs, TokenLogprob
from mqlab.params import Pooling, SamplingParams

TokenId = Annotated[int, msgspec.Meta(ge=0, lt=2**31)]

Finish = Literal["stop", "length", "abort", "error"]
"""Why a sequence ended: an end or stop token (or string), a length limit, an abort, a failure."""

_SHOWN = 200
"""Characters of a choice that a completion shows of itself."""


class Request(msgspec.Struct, frozen=True, tag="r", array_like=True, omit_defaults=True, gc=False):
    """Generate from a prompt, or embed it.

    Attributes:
        id: unique among the client's live requests.
        prompt: token ids, at least one.
        params: ``n`` and ``stop`` are the front's business; the core ignores them.
        client: index of the front process that asks.
        priority: under the priority policy the lowest goes first.
        salt: cached prompts are shared among requests of one salt only.
        epoch: of the model that the prompt was tokenised for; None takes whichever is loaded.
        pooling: embed the prompt, generate nothing.
    """

    id: str
    prompt: Sequence[TokenId]
    params: SamplingParams
    client: int = 0
    priority: int = 0
    salt: str = ""
    epoch: int | None = None
    pooling: Pooling | None = None


class Abort(msgspec.Struct, frozen=True, tag="a", array_like=True, gc=False):
    """Forget these requests; unknown ids are ignored. None: all of the client's, which is gone."""

    ids: tuple[str, ...] | None
    client: int = 0


class Call(msgspec.Struct, frozen=True, tag="c", array_like=True):
    """A control call by name: stats, start_profile, …; answered by a Reply with the same ``id``."""

    id: int
    method: str
    args: tuple[Any, ...] = ()
    client: int = 0


Command = Request | Abort | Call


class Failure(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Why one request failed.

    Attributes:
        kind: ``invalid`` was refused, or contradicted itself on the way, ``failed`` died, ``unavailable`` met no model, ``overloaded``
            found too many others.
    """

    kind: Literal["invalid", "failed", "unavailable", "overloaded"]
    message: str


class RequestStats(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What one request has cost the engine, as the core saw it.

    Attributes:
        queued_s: from its arrival at the core until its first token was scheduled.
        prefill_s: from there to its first new token; with whatever it was recomputed meanwhile.
        decode_s: from there to its end; 0 while it goes on.
        cached_tokens: of its prompt, that the prefix cache had when it was first scheduled.
        preemptions: how often it lost its blocks to others.
        prompt_tokens: of its prompt.
    """

    queued_s: float
    prefill_s: float
    decode_s: float
    cached_tokens: int = 0
    preemptions: int = 0
    prompt_tokens: int = 0


class Delta(msgspec.Struct, array_like=True, omit_defaults=True, gc=False):
    """What one request gained in one step.

    Attributes:
        tokens: new token ids only, in order.
        finish: set on the last delta of a request.
        stop_reason: the stop token id that ended it, None for the model's own end token; the stop string, where text brings one.
        error: set with ``finish="error"``.
        text: filled by layouts that detokenise on the way, where they have searched it for stop strings, too. Then it is all there is.
        logprobs: of ``tokens``, where asked for.
        prompt_logprobs: of the prompt's tokens from the second on, where asked for; on the request's first delta.
        embedding: of the prompt, float32 [hidden], where asked for; on its only delta.
        stats: what the request has cost, on its first delta with tokens (so far: whoever ends it for a stop string hears no more) and
            on its last.
    """

    id: str
    tokens: list[int]
    finish: Finish | None = None
    stop_reason: int | str | None = None
    error: Failure | None = None
    text: str | None = None
    logprobs: Logprobs | None = None
    prompt_logprobs: Logprobs | None = None
    embedding: bytes | None = None
    stats: RequestStats | None = None


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
        epoch: counts the models that were loaded, from 1; an unloaded engine keeps that of the last one.
        state: whether it can serve; an engine asleep has given up its KV memory.
        hidden_size: length of an embedding; 0 where there are none.
        max_num_seqs: sequences in a step at most; 0 where that is not told.
        sleep_level: of an engine asleep: 1 has kept the weights, 2 has not; 0 while awake.
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
    epoch: int = 1
    state: Literal["ready", "unloaded", "asleep"] = "ready"
    hidden_size: int = 0
    max_num_seqs: int = 0
    sleep_level: int = 0


class Model(msgspec.Struct, frozen=True, tag="m", array_like=True, gc=False):
    """The engine's model was loaded, unloaded, put to sleep or woken; to every client."""

    info: ModelInfo


Event = Step | Reply | Dead | Model


class EngineStats(msgspec.Struct, frozen=True, kw_only=True):
    """Counters and gauges of a core at one moment; counters only grow.

    Attributes:
        stamp_ns: CLOCK_MONOTONIC when taken.
        prompt_tokens: of the requests that have come to their first new token; cached_tokens: those of them that were not computed.
        finished: ended requests by reason.
        prefix_queries: prompt tokens that were looked up in the prefix cache; prefix_hits: those found.
        drafts: how often a sequence's next tokens were guessed by speculative decoding; drafted: tokens so guessed; accepted: those that
            the model confirmed; accepted_at: those by their place among the guesses, the first one first.
        iteration_tokens: steps by how many tokens they ran, as engine.iterations counts them; iteration_tokens_sum: tokens of all steps.
        device_us: that a simulated device was busy; oversleep_us: that waits for it were too long, which is no time of the engine's own.
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
    prefix_queries: int = 0
    prefix_hits: int = 0
    drafted: int = 0
    accepted: int = 0
    device_us: int = 0
    oversleep_us: int = 0
    cached_tokens: int = 0
    drafts: int = 0
    accepted_at: tuple[int, ...] = ()
    iteration_tokens: tuple[int, ...] = ()
    iteration_tokens_sum: int = 0

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
    """Tokens of one request, over all its choices. Two are equal where their tokens are: what a cache had tells no two answers apart.

    Attributes:
        cached_tokens: of the prompt, that the engine's prefix cache had before the first of the choices ran.
    """

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Usage) and (self.prompt_tokens, self.completion_tokens) == (other.prompt_tokens, other.completion_tokens)

    def __hash__(self) -> int:
        return hash((self.prompt_tokens, self.completion_tokens))

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
        logprobs: one for each of ``tokens``, where asked for; their text may run ahead of ``text``, which is held back for stop strings.
        prompt_logprobs: one for each token of the prompt, where asked for; None for the first. On the first output of choice 0.
        stats: what the choice has cost the engine, on its last output; of one that a stop string has ended, up to its first token.
    """

    id: str
    index: int
    text: str
    tokens: tuple[int, ...]
    finish: Finish | None = None
    stop_reason: str | int | None = None
    usage: Usage | None = None
    logprobs: tuple[TokenLogprob, ...] | None = None
    prompt_logprobs: tuple[TokenLogprob | None, ...] | None = None
    stats: RequestStats | None = None


class Choice(msgspec.Struct, frozen=True, kw_only=True):
    """One whole choice; ``logprobs``, where asked for, are of each of its tokens."""

    index: int
    text: str
    tokens: tuple[int, ...]
    finish: Finish
    stop_reason: str | int | None = None
    logprobs: tuple[TokenLogprob, ...] | None = None


def _short(text: str) -> str:
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 1]}…"


class Completion(msgspec.Struct, frozen=True, kw_only=True):
    """A finished request with all its choices.

    Attributes:
        prompt_logprobs: one for each token of the prompt, where asked for; None for the first.
    """

    id: str
    prompt_tokens: tuple[int, ...]
    choices: tuple[Choice, ...]
    usage: Usage
    prompt_logprobs: tuple[TokenLogprob | None, ...] | None = None

    @property
    def text(self) -> str:
        """The first choice's text."""
        return self.choices[0].text

    def __repr__(self) -> str:
        told = ", ".join(f"{_short(choice.text)!r} ({choice.finish})" for choice in self.choices)
        return f"<Completion: {told}; {self.usage.prompt_tokens} + {self.usage.completion_tokens} tokens>"


class Tokens(msgspec.Struct, frozen=True, gc=False):
    """A prompt as token ids, with the epoch of the model that they are for; see ModelInfo."""

    ids: list[int]
    epoch: int


class Embedding(msgspec.Struct, frozen=True, kw_only=True):
    """A prompt as a vector.

    Attributes:
        values: one for each hidden unit of the model.
        prompt_tokens: tokens of the prompt.
    """

    values: tuple[float, ...]
    prompt_tokens: int

    def __repr__(self) -> str:
        first = ", ".join(f"{value:.4f}" for value in self.values[:3])
        return f"<Embedding of {self.prompt_tokens} tokens: {len(self.values)} values [{first}, …]>"


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
