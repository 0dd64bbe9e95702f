"""One call of a tool as models write it, ``{"name": …, "arguments": {…}}``, read as it arrives.

Two small machines: one finds where a JSON value ends, knowing nothing but strings, escapes and depth; the other knows which values belong
to a call. The text of the arguments is handed on as it stands, so that its fragments together are what the model wrote, however it was cut.
"""

from __future__ import annotations

import json

_ARGUMENTS = ("arguments", "parameters")
_ASIDE = ("type", "id")
_NEXT = {"{": '"}', ",": '"', ":": ""}
_FIRST = {"name": '"', "arguments": '{"n'}
_STRING, _ATOM = '"', ""


class ValueEnd:
    """Finds the end of one JSON value.

    Attributes:
        done: whether it was found.
    """

    __slots__ = ("_depth", "_escaped", "_kind", "_quoted", "done")

    def __init__(self, first: str) -> None:
        self._kind = first if first in '{["' else _ATOM
        self._depth = 0
        self._quoted = self._escaped = self.done = False

    def push(self, text: str, at: int) -> int:
        """Where in ``text`` the value ends, from ``at`` on; the end of ``text`` where it goes on."""
        for place in range(at, len(text)):
            if self._kind == _ATOM and (text[place] in ",}]" or text[place].isspace()):
                self.done = True
                return place
            self._see(text[place])
            if self.done:
                return place + 1
        return len(text)

    def _see(self, char: str) -> None:
        if self._quoted:
            if self._escaped:
                self._escaped = False
            elif char == "\\":
                self._escaped = True
            elif char == '"':
                self._quoted = False
                self.done = self._kind == _STRING
        elif char == '"':
            self._quoted = True
        elif char in "{[":
            self._depth += 1
        elif char in "}]":
            self._depth -= 1
            self.done = self._depth == 0


class CallReader:
    """Reads one call.

    What was read is not known to be a call until its name is, and its arguments have begun; from then on it is one, even if it ends in
    mid-air or goes on as no JSON does. Arguments that the model wrote as a string of JSON are handed on without its quotes, none or null as
    ``{}``.

    Attributes:
        name: of the tool, once known.
        started: whether it is a call.
        failed: whether it is none; ``raw`` is then all that was read.
        done: whether it has ended; what follows is not its own.
        raw: what was read, until it is known to be a call.
    """

    __slots__ = ("_begun", "_end", "_expects", "_key", "_new", "_value", "done", "failed", "name", "raw", "started")

    def __init__(self) -> None:
        self.name: str | None = None
        self.started = self.failed = self.done = False
        self.raw = ""
        self._expects = "{"
        self._key: str | None = None
        self._end: ValueEnd | None = None
        self._value = ""
        self._begun = False
        self._new = ""

    def push(self, text: str) -> str:
        """Read on. Returns what follows the call, or what follows the place from which on it is none."""
        at = 0
        while at < len(text) and not (self.done or self.failed):
            at = self._between(text, at) if self._end is None else self._within(self._end, text, at)
        self.started = self._known and not self.failed
        self.raw = "" if self.started else self.raw + text[:at]
        return text[at:]

    def take(self) -> str:
        """The arguments' text that has come since it was last asked for."""
        new, self._new = self._new, ""
        return new

    @property
    def _known(self) -> bool:
        return self.name is not None and self._begun

    def _between(self, text: str, at: int) -> int:
        """One character outside of keys and values."""
        char = text[at]
        if char.isspace():
            return at + 1
        if self._expects and char not in self._expects:
            return self._stray(at)
        if not self._expects or char == '"':
            return self._open(char, at)
        if char == "}":
            return self._close(at)
        self._expects = _NEXT[char]
        return at + 1

    def _open(self, char: str, at: int) -> int:
        """A key or a value begins here; that of a key which is known must begin as such values do."""
        if char not in _FIRST.get(self._key or "", char):
            return self._stray(at)
        self._end, self._value = ValueEnd(char), ""
        self._begun = self._begun or (self._key == "arguments" and char == "{")
        return at

    def _within(self, value: ValueEnd, text: str, at: int) -> int:
        end = value.push(text, at)
        if self._key == "arguments" and self._begun:
            self._new += text[at:end]
        else:
            self._value += text[at:end]
        if value.done:
            self._end = None
            return end if self._finished() else self._stray(end)
        return end

    def _finished(self) -> bool:
        """A key or a value is complete. Returns whether it can be one of a call's."""
        key, self._key = self._key, None
        if key is None:
            return self._named(_read(self._value))
        self._expects = ",}"
        if key == "name":
            self.name = _read(self._value)
            return self.name is not None
        return self._begun or key != "arguments" or self._unquoted()

    def _named(self, key: str | None) -> bool:
        self._expects = ":"
        known = "arguments" if key in _ARGUMENTS else key or ""
        twice = self._begun if known == "arguments" else known == "name" and self.name is not None
        self._key = "" if twice else known
        return self._known or known in ("name", "arguments", *_ASIDE)

    def _unquoted(self) -> bool:
        """Arguments that were written as a string, or as null."""
        value = _read(self._value)
        self._begun = value is not None or self._value == "null"
        self._new = value if value and value.strip() else "{}"
        return self._begun

    def _close(self, at: int) -> int:
        if self.name is None:
            return self._stray(at)
        self._new = self._new if self._begun else "{}"
        self._begun = self.done = True
        return at + 1

    def _stray(self, at: int) -> int:
        """What no JSON has here, or no call: it ends a call, and before there was one there is none."""
        self.done, self.failed = self._known, not self._known
        return at


def _read(text: str) -> str | None:
    """A JSON string; None for what is none, or holds half of a surrogate pair."""
    try:
        value = json.loads(text, strict=False)
        return value if isinstance(value, str) and value.encode() is not None else None
    except ValueError:
        return None
