"""What runs: the sessions of this kernel, and other engines of this user."""

from __future__ import annotations

import os
from collections.abc import Mapping
from html import escape

from mqlab.lab.session import Session
from mqlab.probes.running import ranks_table, table
from mqlab.wire.registry import Registry


class Running:
    """A list, as of when it was made.

    Attributes:
        sessions: one line each, by name.
        others: registry entries that are not sessions of this kernel.
        ranks: a table of the processes that share a model; empty where every model has one.
    """

    def __init__(self, sessions: Mapping[str, Session]) -> None:
        self.sessions = {name: f"{session!r}, up {session.age_s:.0f} s" for name, session in sessions.items()}
        entries = Registry().entries()
        self.others = [entry for entry in entries if entry.owner_pid != os.getpid()]
        self.ranks = ranks_table(entries)

    def __repr__(self) -> str:
        lines = [f"{name:<10} {line}" for name, line in self.sessions.items()]
        if not lines:
            lines = ["no session in this kernel; %mqlab serve MODEL starts one"]
        if self.others:
            lines += ["", "also running, to attach to or to stop by pid:", table(self.others)]
        if self.ranks:
            lines += ["", "processes that share a model:", self.ranks]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        return f'<pre style="margin:0">{escape(repr(self))}</pre>'
