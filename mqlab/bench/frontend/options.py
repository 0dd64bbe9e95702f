"""The settings of ``mqlab bench frontend``; light, for the command line reads them to print its help."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import msgspec

from mqlab.config import check, check_types, option
from mqlab.errors import ConfigError


class Load(msgspec.Struct, frozen=True):
    """Streams that are all asked for at once.

    Attributes:
        streams: how many.
        step_s: how long the core's device takes for a step, which brings each of them one token; 0 runs flat out.
        tokens: of each stream.
        held: all must be open at the same time; memory per connection is measured.
    """

    streams: int
    step_s: float
    tokens: int
    held: bool = False

    def __str__(self) -> str:
        if self.held:
            return f"{self.streams:,} held open"
        return f"{self.streams:,} at {self.step_s * 1000:g} ms" if self.step_s else f"{self.streams:,} flat out"


@dataclass(frozen=True, kw_only=True)
class FrontendConfig:
    """How many streams, at which pace, of which server."""

    model: str = option("echo:smollm2-135m", "core behind the front: echo:MODEL with a model's tokenizer, or a model, real or simulated")
    topology: str = option("v1", "layout between front and engine")
    api_server_count: int = option(1, "front processes that share the port")
    record: bool = option(False, "with the light probes that 'mqlab serve' has by default")
    streams: str = option("64,256,1024", "streams at once, flat out, a row each; none for no such row", metavar="N,N,…")
    paced: str = option("64@5,256@20", "streams at once and ms of a step of the echo core, likewise", metavar="N@MS,…")
    held: str = option("none", "streams that are all open before the first of them ends, likewise, as 20000", metavar="N,N,…")
    tokens: int = option(512, "tokens of a stream")
    rounds: int = option(5, "runs of each server, in turns; those that hold streams open run once")
    floor: bool = option(True, "beside it a server that does nothing but send, with chunks that were made before")
    peer_python: str | None = option(None, "beside it vLLM's server, on a dummy model: a Python that has it", metavar="PATH")
    peer_tokens: int = option(128, "tokens of a stream of vLLM's server")
    url: str | None = option(None, "measure a server that runs already, instead of one that is started", metavar="URL")
    pid: tuple[str, ...] = option((), "processes of that server's front; what they started is its engine", nargs="+", metavar="PID")
    output_json: str | None = option(None, "write the result to this file", metavar="FILE")

    def __post_init__(self) -> None:
        check_types(self)
        for name in ("api_server_count", "tokens", "peer_tokens", "rounds"):
            check(getattr(self, name) >= 1, self, name, "must be at least 1")
        check(all(pid.isdecimal() for pid in self.pid), self, "pid", "must be process ids")
        check(bool(self.pid) == (self.url is not None), self, "url", "needs --pid, and --pid needs it: whose CPU time counts must be told")
        if not self.loads:
            raise ConfigError("--streams, --paced and --held are all none: give one of them")

    @property
    def loads(self) -> tuple[Load, ...]:
        """What is measured, in this order. A server that runs already cannot be paced, nor made to hold streams open."""
        flat = [Load(count, 0.0, self.tokens) for count in self._counts("streams")]
        if self.url is not None:
            return tuple(flat)
        return (*flat, *self._paced(), *(_held(count) for count in self._counts("held")))

    @property
    def notes(self) -> tuple[str, ...]:
        """What was asked for and will not be done."""
        return ("a server that runs already is not paced: only --streams counts with --url",) if self.url is not None else ()

    def as_record(self) -> dict[str, Any]:
        """What belongs beside the numbers."""
        return {one.name: getattr(self, one.name) for one in fields(self) if one.name != "output_json"}

    def _counts(self, name: str) -> list[int]:
        parts = _parts(getattr(self, name))
        check(all(part.isdecimal() and int(part) for part in parts), self, name, "must be whole numbers above 0, as 64,256, or none")
        return [int(part) for part in parts]

    def _paced(self) -> list[Load]:
        try:
            pairs = [(int(count), float(ms) / 1000) for count, ms in (part.split("@") for part in _parts(self.paced))]
        except ValueError:
            pairs = [(0, 0.0)]
        check(all(count > 0 and 0 < step < 60 for count, step in pairs), self, "paced", "must be as 64@5,256@20 (streams@ms), or none")
        check(not pairs or self.model.startswith("echo:"), self, "paced", "needs an echo core (--model echo:MODEL); say --paced none")
        return [Load(count, step, self.tokens) for count, step in pairs]


_HELD_TOKENS = 32
_HELD_PER_S = 1000.0
"""Requests that a front surely takes in a second, beside streams that flow."""


def _held(count: int) -> Load:
    """Steps so long that the last request is in before the first has had all its tokens."""
    return Load(count, max(0.02, count / _HELD_PER_S / _HELD_TOKENS * 2), _HELD_TOKENS, held=True)


def _parts(text: str) -> list[str]:
    return [] if text == "none" else [part.strip() for part in text.split(",")]
