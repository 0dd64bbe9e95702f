"""What the two generating routes differ in: how a body becomes prompts, and outputs become JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, TypeVar

from mqlab.front.prompts import Prompt
from mqlab.server.protocol import Generation
from mqlab.types import Finish, Output, TokenLogprob

B = TypeVar("B", bound=Generation, contravariant=True)


class Piece:
    """One choice, as it grows: its text, its logprobs where they are asked for, and how it ended.

    Attributes:
        offset: where in its text the next token begins.
    """

    __slots__ = ("finish", "index", "logprobs", "offset", "stop_reason", "texts")

    def __init__(self, index: int) -> None:
        self.index = index
        self.texts: list[str] = []
        self.logprobs: list[TokenLogprob] | None = None
        self.offset = 0
        self.finish: Finish | None = None
        self.stop_reason: str | int | None = None

    def add(self, output: Output) -> None:
        """What it gained."""
        self.texts.append(output.text)
        if output.logprobs is not None:
            self.logprobs = self.logprobs or []
            self.logprobs += output.logprobs
        self.end(output)

    def end(self, output: Output) -> None:
        """Note how it ended, where ``output`` says so."""
        if output.finish is not None:
            self.finish, self.stop_reason = output.finish, output.stop_reason


class Format(Protocol[B]):
    """One route's shapes.

    Attributes:
        prefix: of an answer's id.
        object: OpenAI's name of a whole answer.
        chunk_object: OpenAI's name of a stream's chunk.
        opening: JSON of a choice that opens it in a stream, ``%d`` being its index; empty for none.
    """

    prefix: str
    object: str
    chunk_object: str
    opening: bytes

    def prompts(self, body: B) -> list[Prompt]:
        """The prompts of a body.

        Raises:
            ApiError: they are no prompts.
        """
        ...

    def text(self, index: int, text: str, scores: bytes) -> bytes:
        """JSON of a stream's choice that brings text, and logprobs as JSON."""
        ...

    def finish(self, piece: Piece) -> bytes:
        """JSON of a stream's choice that ends it."""
        ...

    def scores(self, piece: Piece, tokens: Sequence[TokenLogprob]) -> dict[str, Any]:
        """The logprobs of a choice's next tokens."""
        ...

    def choice(self, piece: Piece) -> dict[str, Any]:
        """A choice of a whole answer."""
        ...

    def add_prompt_scores(self, answer: dict[str, Any], scores: Sequence[object]) -> None:
        """Put the logprobs of the prompts into a whole answer, one for each choice, in its order."""
        ...
