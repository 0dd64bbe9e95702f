"""What a front counts, and where each of its counts is kept: names, types and buckets are vLLM's (0.33), those of our own are said so."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import blake2b
from itertools import product

from mqlab.server.metrics.histogram import one_two_five, width

_REQUEST_S = (0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680)
_FIRST_TOKEN_S = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640, 2560)
_TOKEN_S = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80)
_TOKENS = tuple(one_two_five(5_000_000))
"""Kept whatever the model, so that files fit each other when it is changed; the page has those up to its context."""

STREAMING = ("/v1/completions", "/v1/chat/completions")
"""Routes that count their answers themselves: to look at each piece of a stream for its status would cost something by the token."""

HANDLERS = (
    *STREAMING,
    "/v1/embeddings",
    "/v1/models",
    "/v1/models/{model:path}",
    "/v1/model/load",
    "/v1/model/unload",
    "/tokenize",
    "/detokenize",
    "/health",
    "/ping",
    "/ready",
    "/load",
    "/version",
    "/metrics",
    "/openapi.json",
    "/start_profile",
    "/stop_profile",
    "/reset_prefix_cache",
    "/sleep",
    "/wake_up",
    "/is_sleeping",
)
METHODS = ("GET", "POST")
_STATUSES = (200, 204, 304, 307, 400, 401, 403, 404, 405, 408, 409, 411, 413, 415, 417, 422, 429, 431, 499, 500, 501, 502, 503, 504)
STATUSES = tuple(map(str, _STATUSES))
OTHER = "other"
"""Stands for whatever is not known, so that nobody makes the page longer by asking for things."""


@dataclass(frozen=True)
class Distribution:
    """A histogram. ``tokens``: its buckets end with the model's context."""

    name: str
    help: str
    bounds: tuple[float, ...]
    tokens: bool = False

    @property
    def size(self) -> int:
        """Words that it takes."""
        return width(self.bounds)


@dataclass(frozen=True)
class Counts:
    """A counter for each combination of its labels' values."""

    name: str
    help: str
    labels: tuple[str, ...]
    values: tuple[tuple[str, ...], ...]

    @property
    def size(self) -> int:
        """Words that it takes."""
        return len(self.values)


DISTRIBUTIONS = (
    Distribution("time_to_first_token_seconds", "From the request's arrival to the first token of each choice", _FIRST_TOKEN_S),
    Distribution("inter_token_latency_seconds", "Time between tokens; several that come at once share the time since the last", _TOKEN_S),
    Distribution("request_time_per_output_token_seconds", "Mean time per token after the first, by finished choice", _TOKEN_S),
    Distribution("e2e_request_latency_seconds", "From the request's arrival to the end of each choice", _REQUEST_S),
    Distribution("request_queue_time_seconds", "In the engine, from arrival until first scheduled, by finished choice", _REQUEST_S),
    Distribution("request_prefill_time_seconds", "In the engine, from first scheduled to the first token, by finished choice", _REQUEST_S),
    Distribution("request_decode_time_seconds", "In the engine, from the first token to the last, by finished choice", _REQUEST_S),
    Distribution("request_inference_time_seconds", "In the engine, from first scheduled to the last token, by finished choice", _REQUEST_S),
    Distribution("request_prompt_tokens", "Prompt tokens, by finished request", _TOKENS, tokens=True),
    Distribution("request_generation_tokens", "Generated tokens, by finished choice", _TOKENS, tokens=True),
    Distribution("request_max_num_generation_tokens", "Tokens of the longest choice, by finished request", _TOKENS, tokens=True),
    Distribution(
        "request_prefill_kv_computed_tokens", "Prompt tokens not found in the prefix cache, by finished choice", _TOKENS, tokens=True
    ),
    Distribution("request_params_n", "Choices asked for, by finished request", (1, 2, 5, 10, 20)),
    Distribution("request_params_max_tokens", "max_tokens asked for, by finished request that named one", _TOKENS, tokens=True),
    Distribution("request_num_preemptions", "How often it lost its KV blocks to others, by finished choice", (1, 2, 3, 4, 5, 10, 20)),
)

REQUEST_SUCCESS = Counts(
    "request_success",
    "Choices that ended, as their reader saw it: of a stop string is stop, abort are those whose reader left",
    ("finished_reason",),
    tuple((reason,) for reason in ("stop", "length", "abort", "error")),
)
REJECTIONS = Counts(
    "admission_rejections",
    "Calls of generating routes that were turned away for what was open or going on, not for what they asked",
    ("reason",),
    tuple((reason,) for reason in ("overloaded", "rate_limit_exceeded", "shutting_down", "model_unavailable")),
)
STREAMED = Counts("http_responses", "", ("route", "status"), tuple(product(STREAMING, (*STATUSES, OTHER))))
HTTP = Counts(
    "http_requests", "", ("handler", "method", "status"), tuple(product((*HANDLERS, OTHER), (*METHODS, OTHER), (*STATUSES, OTHER)))
)

_ALL = (*DISTRIBUTIONS, REQUEST_SUCCESS, REJECTIONS, STREAMED, HTTP)


def _starts() -> Iterator[tuple[str, int]]:
    start = 0
    for one in _ALL:
        yield one.name, start
        start += one.size


START = dict(_starts())
"""The first word of each, by name."""

SIZE = sum(one.size for one in _ALL)
DIGEST = int.from_bytes(blake2b(repr(_ALL).encode(), digest_size=8).digest(), "little")
"""Tells this layout from any other."""
