"""What the two generating routes differ in: how a body becomes prompts, and outputs become JSON."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from mqlab.front.prompts import Prompt
from mqlab.front.textmodel import TextModel
from mqlab.server.openai.protocol import Generation
from mqlab.types import Finish, Output, SamplingParams, TokenLogprob

B = TypeVar("B", bound=Generation, contravariant=True)


class Piece(ABC):
    """One choice of an answer, as it grows: either collected, for a whole answer, or turned into a stream's JSON, output by output.

    Attributes:
        texts: what was added so far.
        logprobs: of its tokens, where they are asked for.
        offset: where in its text the next token begins.
        finish: how it ended, None so far.
        stop_reason: the stop string or token that ended it.
    """

    __slots__ = ("finish", "index", "logprobs", "offset", "opened", "stop_reason", "texts")

    def __init__(self, index: int) -> None:
        self.index = index
        self.texts: list[str] = []
        self.logprobs: list[TokenLogprob] | None = None
        self.offset = 0
        self.opened = False
        self.finish: Finish | None = None
        self.stop_reason: str | int | None = None

    def add(self, output: Output) -> None:
        """What it gained, for ``choice``."""
        self.texts.append(output.text)
        if output.logprobs is not None:
            self.logprobs = self.logprobs or []
            self.logprobs += output.logprobs
        self.end(output)

    def end(self, output: Output) -> None:
        """Note how it ended, where ``output`` says so."""
        if output.finish is not None:
            self.finish, self.stop_reason = output.finish, output.stop_reason

    @abstractmethod
    def choice(self) -> dict[str, Any]:
        """It as a choice of a whole answer."""

    @abstractmethod
    def events(self, output: Output) -> list[bytes]:
        """What it gained as choices of a stream, each JSON: text and end apart, since clients drop text that comes with a
        finish_reason."""

    def frame(self) -> tuple[bytes, bytes] | None:
        """What stands around the text of an event that has nothing but new text: `before + text as JSON without quotes + behind` is what
        ``events`` gives for it from now on. None while there is no such thing."""
        return None


@dataclass(frozen=True, slots=True)
class Plan:
    """What a body asks for, once the model is known that will answer it.

    Attributes:
        prompts: one or several, each answered ``params.n`` times.
        piece: makes the choice with this index, empty.
        constraint: the body's field that says what the text must match; what is wrong with that is blamed on it.
    """

    prompts: list[Prompt]
    params: SamplingParams
    piece: Callable[[int], Piece]
    constraint: str = "structured_outputs"


class Format(Protocol[B]):
    """One route's shapes.

    Attributes:
        prefix: of an answer's id.
        object: OpenAI's name of a whole answer.
        chunk_object: OpenAI's name of a stream's chunk.
    """

    prefix: str
    object: str
    chunk_object: str

    def plan(self, body: B, text: TextModel) -> Plan:
        """What a body asks of a model with this tokenizer and template.

        Raises:
            ApiError, InvalidRequest: it cannot be had.
        """
        ...

    def add_prompt_scores(self, answer: dict[str, Any], scores: Sequence[object]) -> None:
        """Put the logprobs of the prompts into a whole answer, one for each choice, in its order."""
        ...
