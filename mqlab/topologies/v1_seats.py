"""Several front processes at one V1 engine core: who sits where, and what the engine is told of it.

    launcher ── ROUTER→DEALER, PUSH→PULL ──┐            owns the engine: starts it, watches it, says who sits where
    front-0  ── ROUTER→DEALER, PUSH→PULL ──┤ engine     each seat has two sockets of its own, which its front binds
    front-1  ── ROUTER→DEALER, PUSH→PULL ──┘

A front that is started again gets another seat: nothing that was meant for the one before it, an answer or an abort, can reach it.
Source: vLLM V1's scale-out of its API server (PR 17546), whose engine knows its fronts from the start and ends with any of them.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from mqlab.types import Abort, Call, Request

OWN = 0
"""The launcher's own number as a client."""


@dataclass(frozen=True)
class Seat:
    """A front's place at an engine.

    Attributes:
        client: its number; no other front has it, or will.
        input: address where the engine reads what the front sends; the front binds it, as the others.
        output: where the engine writes to the front.
        notice: where the launcher tells the front how the engine ended.
        page: path of the engine's page.
    """

    client: int
    input: str
    output: str
    notice: str
    page: str


class Join(msgspec.Struct, frozen=True, tag="j", array_like=True, gc=False):
    """A front takes a seat: connect to its sockets."""

    client: int
    input: str
    output: str


class Leave(msgspec.Struct, frozen=True, tag="l", array_like=True, gc=False):
    """A front is gone: end its requests, read and send nothing of its any more."""

    client: int


Told = Request | Abort | Call | Join | Leave
"""What the engine of several fronts receives; the last two from the launcher."""
