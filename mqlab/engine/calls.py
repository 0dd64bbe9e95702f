"""Control calls: a name, its arguments, an answer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from mqlab.errors import CallError, MqlabError
from mqlab.types import Call, Reply

Calls = Mapping[str, Callable[..., Any]]


def answer(calls: Calls, call: Call) -> Reply:
    """Run one call. Whatever goes wrong is in the reply's ``error``: a call never harms the engine."""
    try:
        return Reply(call.id, _find(calls, call.method)(*call.args), client=call.client)
    except MqlabError as error:
        return Reply(call.id, error=str(error), client=call.client)
    except Exception as error:
        return Reply(call.id, error=f"{call.method}: {type(error).__name__}: {error}", client=call.client)


def _find(calls: Calls, method: str) -> Callable[..., Any]:
    if method not in calls:
        raise CallError(f"unknown call {method!r}; known: {', '.join(sorted(calls))}")
    return calls[method]
