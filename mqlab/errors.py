"""Every exception that mqlab raises on purpose.

    MqlabError
    ├── ConfigError         a setting is wrong; nothing was started
    ├── ModelError          the model cannot be found, fetched or read
    ├── RequestError        this request only; the engine is fine
    │   ├── InvalidRequest  refused when added            HTTP 400
    │   ├── RequestFailed   died while being processed    HTTP 500
    │   ├── ModelUnavailable  no model, or another one than it was made for    HTTP 503
    │   └── Overloaded      too many at once; nothing was sent    HTTP 503 with Retry-After
    ├── CallError           a control call failed; the engine is fine
    │   └── CallTimeout     … or did not answer in time
    ├── EngineDeadError     everything from now on; carries the first cause and the child's traceback
    ├── RankDied            one of the processes that share a model is gone, and the engine with it
    ├── EngineStartError    never became ready: exit code, last lines of its log, what to do
    ├── FrontError          a front process of a server does not start, or dies again and again
    ├── ClientClosedError   used after close
    ├── ProfileError        a capture could not be taken
    ├── BenchError          a measurement could not be made
    └── TraceError          a trace cannot be read, written or joined

A message names the value, the limit and the remedy.
"""

from __future__ import annotations

from typing import Literal


class MqlabError(Exception):
    """Base of all errors below."""


class ConfigError(MqlabError, ValueError):
    """A setting is wrong; nothing was started."""


class ModelError(MqlabError):
    """The model cannot be found, fetched or read."""


REFUSALS = (ConfigError, ModelError)
"""What an engine says that will not start, as opposed to one that cannot: its user gets that as it is, from whatever process."""

RefusalKind = Literal["config", "model"]
"""What a refusal is called between processes."""


def refusal_kind(error: ConfigError | ModelError) -> RefusalKind:
    """Which of REFUSALS an error is, of the class itself or of one below it."""
    return "config" if isinstance(error, ConfigError) else "model"


def refusal_of(kind: RefusalKind, cause: str) -> ConfigError | ModelError:
    """A refusal, for whoever it was told to."""
    return (ConfigError if kind == "config" else ModelError)(cause)


class RequestError(MqlabError):
    """This request only; the engine is fine."""


class InvalidRequest(RequestError, ValueError):
    """Refused when added: out of range, too long, duplicate id; or it turns out that it leaves no token to choose."""


class RequestFailed(RequestError):
    """Died while being processed."""


class ModelUnavailable(RequestError):
    """The engine has no model just now, or another one than the request was tokenised for; it may be sent again."""


class Overloaded(RequestError):
    """Too many requests at once, for a limit that was set or for the layout; nothing was sent, and later it may be."""


class CallError(MqlabError):
    """A control call failed in the engine; the engine is fine."""


class CallTimeout(CallError, TimeoutError):
    """A control call did not answer within its timeout; it may still run."""


class EngineDeadError(MqlabError):
    """The engine is gone: every stream and call fails with this from now on.

    Args:
        cause: one sentence, the first thing that went wrong.
        traceback: the engine's own traceback, empty where it left none (a kill).
    """

    def __init__(self, cause: str, traceback: str = "") -> None:
        super().__init__(cause, traceback)
        self.cause = cause
        self.traceback = traceback

    def __str__(self) -> str:
        return f"{self.cause}\n\nIn the engine:\n{self.traceback.rstrip()}" if self.traceback else self.cause


class RankDied(MqlabError):
    """One of the processes that share a model is gone, and the engine cannot go on without it; what it left behind is a note."""


class EngineStartError(MqlabError):
    """The engine never became ready.

    Args:
        cause: one sentence with the remedy.
        exit_code: the engine's exit status, None while it still runs, negative for a signal.
        log_tail: the last lines that it wrote.
    """

    def __init__(self, cause: str, exit_code: int | None = None, log_tail: str = "") -> None:
        super().__init__(cause, exit_code, log_tail)
        self.cause = cause
        self.exit_code = exit_code
        self.log_tail = log_tail

    def __str__(self) -> str:
        code = "" if self.exit_code is None else f" (exit code {self.exit_code})"
        tail = f"\n\nLast lines of the engine:\n{self.log_tail.rstrip()}" if self.log_tail.strip() else ""
        return f"{self.cause}{code}{tail}"


class FrontError(MqlabError):
    """A front process of a server does not start, or dies again and again."""


class ClientClosedError(MqlabError):
    """The client was used after close."""


class ProfileError(MqlabError):
    """A capture could not be taken; the message says what to change."""


class TraceError(MqlabError):
    """A trace cannot be read, written or joined; no file was changed."""


class BenchError(MqlabError):
    """A measurement could not be made; requests that failed are part of its result instead."""
