"""Takes what one choice of an answer gains, as it arrives: for a stream, or for the whole of it."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from typing import Protocol

from mqlab.client.contract import Pushing
from mqlab.client.slot import gather, own
from mqlab.front.choice import ChoiceReader
from mqlab.server.http.line import Line
from mqlab.server.metrics.meter import Times
from mqlab.server.openai.answer import Piece
from mqlab.server.openai.stream import Chunks
from mqlab.types import Delta, Output


class Owner(Protocol):
    """Whose choices they are."""

    def note(self, sink: ChoiceSink, output: Output, now: float) -> None:
        """A choice had an output then."""
        ...

    def news(self) -> None:
        """A choice holds something that cannot be shown yet."""
        ...

    def fail(self, sink: ChoiceSink, error: Exception) -> None:
        """A choice cannot go on."""
        ...


class ChoiceSink(ABC):
    """See mqlab.client.direct.Sink.

    Args:
        owner: of all choices of the answer.
        index: among them.
        number: of its prompt.

    Attributes:
        held: what has come and was not read yet.
        pushing: the request of this choice.
    """

    __slots__ = ("_owner", "_reader", "_times", "held", "index", "number", "piece", "pushing")

    def __init__(self, owner: Owner, index: int, number: int, reader: ChoiceReader, piece: Piece, times: Times) -> None:
        self._owner = owner
        self._reader = reader
        self._times = times
        self.index = index
        self.number = number
        self.piece = piece
        self.held: Delta | None = None
        self.pushing: Pushing | None = None

    @abstractmethod
    def put(self, delta: Delta) -> None:
        """See Sink."""

    def release(self) -> None:
        """Read what is held, if anything is."""
        if self.held is not None:
            delta, self.held = self.held, None
            self._read(delta)

    @abstractmethod
    def show(self, output: Output) -> None:
        """Add an output to the answer."""

    def fail(self, error: Exception) -> None:
        """See Sink."""
        self._owner.fail(self, error)

    def leave(self) -> None:
        """Abort the request if it still runs, and let it go."""
        if self.pushing is not None:
            self.pushing.leave()
            self.pushing = None

    def _hold(self, delta: Delta) -> None:
        if self.held is None:
            self.held = own(delta)
        else:
            gather(self.held, delta)

    def _read(self, delta: Delta) -> None:
        now = time.monotonic()
        output = self._reader.read(delta)
        self._times.tokens(len(output.tokens), now)
        self._pass_on(output, now)

    def _pass_on(self, output: Output, now: float) -> None:
        if output.finish is not None and self.pushing is not None:
            self.pushing.leave()
        self._owner.note(self, output, now)


class WholeSink(ChoiceSink):
    """Collects a choice. Where nothing has to be found on the way, its text is decoded once, at the end: a twentieth of the work."""

    __slots__ = ()

    def put(self, delta: Delta) -> None:
        """See Sink."""
        if self._reader.stepwise or delta.text is not None:
            self._read(delta)
            return
        now = time.monotonic()
        self._times.tokens(len(delta.tokens), now)
        self._hold(delta)
        if delta.finish is not None and self.held is not None:
            self._pass_on(self._reader.read(self.held), now)

    def show(self, output: Output) -> None:
        """See ChoiceSink.show."""
        self.piece.add(output)


class StreamSink(ChoiceSink):
    """Makes events of what comes, and writes them at once while the reader keeps up.

    Most tokens are text by themselves, and then an event is three pieces of bytes of which two are always the same.
    """

    __slots__ = ("_chunks", "_frame", "_line")

    def __init__(
        self, line: Line, chunks: Chunks, owner: Owner, index: int, number: int, reader: ChoiceReader, piece: Piece, times: Times
    ) -> None:
        super().__init__(owner, index, number, reader, piece, times)
        self._line = line
        self._chunks = chunks
        self._frame: tuple[bytes, bytes] | None = None

    def put(self, delta: Delta) -> None:
        """See Sink."""
        if not self._line.ready:
            self._hold(delta)
            self._owner.news()
            return
        if self._frame is not None and (text := self._reader.escaped(delta)) is not None:
            self._times.tokens(1, time.monotonic())
            if text:
                begin, end = self._frame
                self._line.write(b"%b%b%b" % (begin, text, end))
            return
        self._read(delta)

    def show(self, output: Output) -> None:
        """See ChoiceSink.show."""
        if new := b"".join(map(self._chunks.choice, self.piece.events(output))):
            self._line.write(new)
        if self._frame is None and self._reader.plain and (frame := self.piece.frame()) is not None:
            self._frame = self._chunks.around(frame)
