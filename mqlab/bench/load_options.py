"""The settings of the load generator; light, for the command line reads them to print its help. Names are those of ``vllm bench serve``."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal
from urllib.parse import urlsplit

import msgspec

from mqlab.config import check, check_types, option
from mqlab.errors import ConfigError

Backend = Literal["openai", "vllm", "openai-chat"]
Since = Literal["auto", "scheduled", "sent"]

METRICS = ("ttft", "tpot", "itl", "e2el")
"""What is measured per request: time to first token, per output token, between tokens, to the last token."""

SLO_PRESETS: dict[str, dict[str, float]] = {
    "llama-3.1-8b": {"ttft": 2000, "tpot": 100},
    "llama-3.1-8b-interactive": {"ttft": 500, "tpot": 30},
    "llama-2-70b": {"ttft": 2000, "tpot": 200},
    "llama-2-70b-interactive": {"ttft": 450, "tpot": 40},
    "llama-3.1-405b": {"ttft": 6000, "tpot": 175},
    "deepseek-r1": {"ttft": 2000, "tpot": 80},
    "deepseek-r1-interactive": {"ttft": 1500, "tpot": 15},
    "gpt-oss-120b": {"ttft": 3000, "tpot": 80},
}
"""Limits in ms by the name of an MLPerf inference scenario (inference_rules.adoc); ``--goodput NAME`` takes one."""

_PATHS: dict[str, str] = {"openai": "/v1/completions", "vllm": "/v1/completions", "openai-chat": "/v1/chat/completions"}


@dataclass(frozen=True, kw_only=True)
class LoadConfig:
    """The load: where it goes, when requests arrive, what is reported."""

    backend: Backend = option("openai", "kind of API: completions, or chat", choices=("openai", "vllm", "openai-chat"), usual=True)
    base_url: str | None = option(None, "server; by default http://HOST:PORT", metavar="URL", usual=True)
    host: str = option("127.0.0.1", "address of the server", usual=True)
    port: int = option(8000, "port of the server", usual=True)
    endpoint: str | None = option(None, "path of the API; by default that of --backend", metavar="PATH")
    model: str | None = option(None, "model name to ask for; by default the first of the server's /v1/models", usual=True)
    tokenizer: str | None = option(None, "model whose tokenizer makes the prompts and counts tokens where the server sends no usage")
    num_prompts: int = option(1000, "requests", usual=True)
    request_rate: float = option(
        math.inf, "requests/s; inf sends all at once, or at a trace's own times", infinite=True, aliases=("--rate",), usual=True
    )
    burstiness: float = option(1.0, "shape of the gaps between arrivals: 1 Poisson, less burstier, more smoother, inf even", infinite=True)
    max_concurrency: int | None = option(
        None, "requests under way at most; the others wait in the client, which is reported apart", usual=True
    )
    ramp_up_strategy: Literal["linear", "exponential"] | None = option(
        None, "let the rate climb from the first request to the last", choices=("linear", "exponential")
    )
    ramp_up_start_rps: float | None = option(None, "rate at the first request")
    ramp_up_end_rps: float | None = option(None, "rate at the last request")
    num_warmups: int = option(1, "requests sent before the run, of prompts of their own, in no figure")
    num_workers: int | None = option(None, "processes that send; by default chosen by load and cores")
    temperature: float = option(0.0, "sampling temperature")
    ignore_eos: bool | None = option(None, "go on after an end token; by default for all datasets but sharegpt and sonnet")
    extra_body: str | None = option(None, "more fields of each request's body", metavar="JSON")
    request_timeout: float = option(21600.0, "seconds that a request may take; then it has failed")
    latency_from: Since = option(
        "auto",
        "where latencies start; auto: when a request was due, or sent where --max-concurrency holds it",
        choices=("auto", "scheduled", "sent"),
    )
    max_start_lag: float = option(0.1, "the run is void when requests start later than due by more than these seconds (99 %)")
    goodput: tuple[str, ...] = option(
        (), "limits in ms, as ttft:500 tpot:30 e2el:9000, or the name of an MLPerf scenario", nargs="+", metavar="LIMIT", usual=True
    )
    percentile_metrics: str = option("ttft,tpot,itl", "what the table shows: of ttft,tpot,itl,e2el", metavar="NAMES")
    metric_percentiles: str = option("99", "percentiles to report, as 50,90,99", metavar="LIST")
    save_result: bool = option(False, "write the result to a JSON file", usual=True)
    save_detailed: bool = option(False, "write the figures of each request too")
    append_result: bool = option(False, "add the result as one more line to the file")
    result_dir: str | None = option(None, "folder of the file; by default the current one", metavar="FOLDER")
    result_filename: str | None = option(
        None, "write the result under this name; by default made from label, rate, model and time", metavar="FILE", usual=True
    )
    metadata: tuple[str, ...] = option((), "facts to keep with the result", nargs="*", metavar="KEY=VALUE")
    label: str | None = option(None, "name of the run in its file; by default the backend")
    disable_tqdm: bool = option(False, "show no progress bar")

    def __post_init__(self) -> None:
        for name in ("goodput", "metadata"):
            object.__setattr__(self, name, tuple(getattr(self, name) or ()))
        check_types(self)
        _check_numbers(self)
        _check_ramp(self)
        for name in ("limits", "facts", "percentiles", "shown_metrics", "extra_fields"):
            getattr(self, name)  # each raises where it cannot be read

    @property
    def url(self) -> str:
        """The server, without a slash at the end."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return self.base_url.rstrip("/") if self.base_url else f"http://{host}:{self.port}"

    @property
    def path(self) -> str:
        """The API's path."""
        return self.endpoint or _PATHS[self.backend]

    @property
    def chat(self) -> bool:
        """Whether prompts are sent as conversations."""
        return self.backend == "openai-chat"

    @property
    def saves(self) -> bool:
        """Whether the result goes to a file."""
        return self.save_result or self.save_detailed or self.append_result or self.result_filename is not None

    @property
    def from_schedule(self) -> bool:
        """Whether latencies start when a request was due, so that a late send hides no waiting (no coordinated omission)."""
        return self.latency_from == "scheduled" or (self.latency_from == "auto" and self.max_concurrency is None)

    @property
    def limits(self) -> dict[str, float]:
        """Limits in ms by metric, of ``goodput``."""
        limits: dict[str, float] = {}
        for item in self.goodput:
            limits |= SLO_PRESETS.get(item) or self._limit(item)
        return limits

    @property
    def facts(self) -> dict[str, str]:
        """``metadata`` by key."""
        pairs = [item.partition("=") for item in self.metadata]
        check(all(key and equals for key, equals, _ in pairs), self, "metadata", "must be pairs KEY=VALUE")
        return {key: value for key, _, value in pairs}

    @property
    def percentiles(self) -> tuple[float, ...]:
        """``metric_percentiles`` as numbers."""
        try:
            numbers = tuple(float(item) for item in self.metric_percentiles.split(","))
        except ValueError:
            numbers = (-1.0,)
        check(all(0 <= number <= 100 for number in numbers), self, "metric_percentiles", "must be numbers in [0, 100], as 50,90,99")
        return numbers

    @property
    def shown_metrics(self) -> tuple[str, ...]:
        """``percentile_metrics`` as names."""
        names = tuple(name.strip() for name in self.percentile_metrics.split(","))
        check(set(names) <= set(METRICS), self, "percentile_metrics", f"must be names of {','.join(METRICS)}")
        return names

    @property
    def extra_fields(self) -> dict[str, Any]:
        """``extra_body`` as an object."""
        try:
            return msgspec.json.decode(self.extra_body or "{}", type=dict[str, Any])
        except msgspec.MsgspecError as error:
            raise ConfigError(f"--extra-body={self.extra_body!r} must be a JSON object: {error}") from None

    def _limit(self, item: str) -> dict[str, float]:
        name, _, text = item.partition(":")
        try:
            value = float(text)
        except ValueError:
            value = -1.0
        good = name in METRICS and name != "itl" and value > 0
        check(good, self, "goodput", f"must be pairs of ttft, tpot or e2el and ms, as ttft:500, or one of {', '.join(SLO_PRESETS)}")
        return {name: value}


def _check_numbers(load: LoadConfig) -> None:
    for name in ("num_prompts", "max_concurrency", "num_workers"):
        value = getattr(load, name)
        check(value is None or value >= 1, load, name, "must be at least 1")
    for name in ("request_rate", "burstiness", "request_timeout", "max_start_lag", "ramp_up_start_rps", "ramp_up_end_rps"):
        value = getattr(load, name)
        check(value is None or value > 0, load, name, "must be above 0")
    for name in ("num_warmups", "temperature"):
        check(getattr(load, name) >= 0, load, name, "must be at least 0")
    check(0 < load.port <= 65535, load, "port", "must be in [1, 65535]")
    check(_is_address(load.url), load, "base_url" if load.base_url else "host", "must be of an address like http://127.0.0.1:8000")
    check(load.endpoint is None or load.endpoint.startswith("/"), load, "endpoint", "must start with /")


def _is_address(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:  # a bracket that is not closed, a port that is no number
        return False


def _check_ramp(load: LoadConfig) -> None:
    given = (load.ramp_up_strategy, load.ramp_up_start_rps, load.ramp_up_end_rps)
    whole = all(item is not None for item in given) or not any(item is not None for item in given)
    check(whole, load, "ramp_up_strategy", "needs --ramp-up-start-rps and --ramp-up-end-rps, and they need it")
    check(
        load.ramp_up_strategy is None or math.isinf(load.request_rate), load, "request_rate", "cannot be combined with --ramp-up-strategy"
    )
