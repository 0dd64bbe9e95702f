"""Calls of tools in the text of an answer, found as it arrives: what the model says and what it calls, in the order it wrote them."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass
from functools import lru_cache

from mqlab.text.callreader import CallReader


@dataclass(frozen=True, slots=True)
class CallFormat:
    """How a model writes calls.

    Attributes:
        opens: written before each, or before the first of them.
        closes: written behind each; empty where nothing is.
        bare: whether one may begin the text without a mark.
        key: what it names the arguments.
    """

    name: str
    opens: str
    closes: str
    bare: bool
    key: str


HERMES = CallFormat("hermes", "<tool_call>", "</tool_call>", False, "arguments")
"""``<tool_call>{"name": …, "arguments": {…}}</tool_call>``: Hermes 2 Pro, Qwen 2.5 and 3. Source: NousResearch/Hermes-Function-Calling."""

LLAMA3 = CallFormat("llama3_json", "<|python_tag|>", "", True, "parameters")
"""``{"name": …, "parameters": {…}}`` at the beginning or behind ``<|python_tag|>``, several with ``;`` between. Source: Meta, Llama 3.1."""

FORMATS = {form.name: form for form in (HERMES, LLAMA3)}


@dataclass(frozen=True, slots=True)
class CallPart:
    """A piece of a call.

    Attributes:
        index: which call of the answer.
        name: of the tool, with the call's first piece.
        arguments: the next piece of their JSON.
    """

    index: int
    name: str | None
    arguments: str


Part = str | CallPart
"""Words, or a piece of a call."""


class Marks:
    """Finds marks in a text, and what may be the beginning of one at its end."""

    def __init__(self, marks: Collection[str]) -> None:
        self._pattern = re.compile("|".join(map(re.escape, sorted(marks, reverse=True))))
        self._begun = {mark[:length] for mark in marks for length in range(1, len(mark))}
        self._longest = max(map(len, self._begun), default=0)

    @staticmethod
    @lru_cache
    def of(opens: str, hidden: frozenset[str]) -> Marks:
        """Those of a format and a tokenizer; Llama 3 has some 250, which are looked through once."""
        return Marks(hidden | {opens})

    def find(self, text: str) -> tuple[int, str] | None:
        """The first one, and where it is."""
        found = self._pattern.search(text)
        return None if found is None else (found.start(), found[0])

    def settled(self, text: str) -> int:
        """How much of a text without marks is none, whatever follows."""
        lengths = range(min(self._longest, len(text)), 0, -1)
        return len(text) - next((length for length in lengths if text[-length:] in self._begun), 0)


class CallParser:
    """Parts one answer into words and calls; how its text is cut into pushes makes no difference to what they are together.

    Words stay as they are, but for white space before, between and behind calls. What begins like a call and turns out to be none is words;
    what follows a call inside its marks and is no further one is dropped.

    Args:
        form: how the model writes calls.
        most: calls to hand on; further ones are dropped. None for all.
        hidden: names of special tokens that the text shows only so that the marks among them are seen: they are left out.

    Attributes:
        calls: how many have begun.
    """

    def __init__(self, form: CallFormat, most: int | None = None, hidden: Collection[str] = ()) -> None:
        self._form = form
        self._most = most
        self._marks = Marks.of(form.opens, frozenset(hidden))
        self._text = ""
        self._parts: list[Part] = []
        self._step = CallParser._words
        self._said = False  # any words
        self._before = ""  # of a call that may turn out to be none: what stands before it, and was neither words nor call so far
        self._inside = False  # behind a call, inside its marks
        self._reader = CallReader()
        self._found = 0
        self.calls = 0

    def push(self, text: str) -> list[Part]:
        """Add text; what is settled by it."""
        self._text += text
        while self._text and self._step(self):
            pass
        return self._take()

    def end(self) -> list[Part]:
        """The text has ended; what was held back."""
        if self._step == CallParser._call:
            self._text = self._reader.raw
        elif self._inside and self._form.closes:
            self._text = ""
        rest = self._before + self._text
        if not (self._found and rest.isspace()):
            self._say(rest)
        self._text = self._before = ""
        return self._take()

    def _take(self) -> list[Part]:
        parts, self._parts = self._parts, []
        return parts

    def _say(self, words: str) -> None:
        self._said = self._said or bool(words)
        if words and self._parts and isinstance(last := self._parts[-1], str):
            self._parts[-1] = last + words
        elif words:
            self._parts.append(words)

    def _words(self) -> bool:
        """Words, up to the next mark. Returns whether there is more to be done, as each step does."""
        if self._form.bare and not self._said and not self._found:
            begin = self._text.lstrip()
            if not begin:
                return False
            if begin[0] == "{":
                return self._enter(len(self._text) - len(begin), "")
        if (found := self._marks.find(self._text)) is None:
            return self._say_settled()
        place, mark = found
        if mark == self._form.opens:
            return self._enter(place, mark)
        self._text = self._text[:place] + self._text[place + len(mark) :]
        return True

    def _say_settled(self) -> bool:
        """All but white space at the end, which goes with what follows, and what may be the beginning of a mark."""
        settled = self._text[: self._marks.settled(self._text)].rstrip()
        self._say(settled)
        self._text = self._text[len(settled) :]
        return False

    def _enter(self, place: int, mark: str) -> bool:
        """Calls should begin here."""
        words = self._text[:place].rstrip()
        self._say(words)
        self._before = self._text[len(words) : place] + mark
        self._text = self._text[place + len(mark) :]
        self._inside = False
        self._step = CallParser._around
        return True

    def _leave(self) -> bool:
        """Back to words; what stood before a call that came to nothing is some."""
        self._say(self._before)
        self._before, self._inside = "", False
        self._step = CallParser._words
        return True

    def _around(self) -> bool:
        """Before, between and behind calls."""
        text = self._text.lstrip()
        for mark in filter(None, (self._form.closes, self._form.opens)):
            if text.startswith(mark):
                self._skip(mark)
                return mark == self._form.opens or self._leave()
            if mark.startswith(text):
                return False
        if not text:
            return False
        if text[0] == "{":
            self._skip("")
            self._reader, self._step = CallReader(), CallParser._call
            return True
        if self._inside and (text[0] == ";" or self._form.closes):
            self._skip(text[0])
            return True
        return self._leave()

    def _skip(self, mark: str) -> None:
        """White space and a mark; kept as words where there was no call yet."""
        length = len(self._text) - len(self._text.lstrip()) + len(mark)
        if not self._inside:
            self._before += self._text[:length]
        self._text = self._text[length:]

    def _call(self) -> bool:
        reader, begun = self._reader, self._reader.started
        self._text = reader.push(self._text)
        if reader.failed:
            self._before += reader.raw
            return self._leave()
        if reader.started:
            self._before, self._inside = "", True
            self._tell(None if begun else reader.name, reader.take())
        if reader.done:
            self._found += 1
            self._step = CallParser._around
        return reader.done

    def _tell(self, name: str | None, arguments: str) -> None:
        if self._most is not None and self._found >= self._most:
            return
        self.calls = self._found + 1
        if name is not None or arguments:
            self._parts.append(CallPart(self._found, name, arguments))
