"""Answers of a given form: a JSON schema, a regular expression, a choice of texts or a grammar says which tokens may come next.

Source: llguidance (Moskal et al., https://github.com/guidance-ai/llguidance), whose masks vLLM and SGLang use as well.
"""

from __future__ import annotations

from collections import OrderedDict
from concurrent.futures import Future
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from mqlab.engine.deepstack import on_deep_stack
from mqlab.engine.masks import Bits, bits
from mqlab.errors import InvalidRequest
from mqlab.params import StructuredOutputs
from mqlab.types import ModelInfo

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLParserLimits, LLTokenizer

PATIENCE_S = 1.0
"""How long the engine stands still for one grammar to be compiled."""
MAX_COMPILED = 64
MAX_UNDER_WAY = 2


class TokenGuide:
    """One text under a grammar, an engine/sequence.py Guide. Never raises: after an error its mask is empty and ``error`` says why.

    Args:
        matcher: at the beginning of the text; taken over.
        usable: tokens that may be drawn as long as there are such.
        ends: tokens that end a text.

    Attributes:
        done: whether an end token was taken.
    """

    def __init__(self, matcher: LLMatcher, usable: Bits, ends: frozenset[int]) -> None:
        self._matcher = matcher
        self._usable = usable
        self._ends = ends
        self.done = False

    def mask(self) -> Bits:
        """What may come next. End tokens are in it where the text may end, and alone where no text may follow."""
        words = np.frombuffer(self._matcher.compute_bitmask(), "<u4")[: len(self._usable)]
        if self._matcher.is_error():
            return np.zeros_like(self._usable)
        allowed = words & self._usable
        return allowed if allowed.any() else words.copy()

    def take(self, token: int) -> None:
        """Go on with a token that the mask allowed."""
        if token in self._ends:
            self.done = True
        else:
            self._matcher.consume_token(token)

    @property
    def error(self) -> str:
        """Why no token is allowed any more; empty while all is well."""
        return f"structured_outputs: {_short(self._matcher.get_error())}" if self._matcher.is_error() else ""


class Grammars:
    """The grammars of one model's requests. Tokenizer and compiler are loaded for the first one; a grammar is compiled once.

    Where a text may end, end tokens are allowed beside what may follow; where nothing may, they are all that is. With ``ignore_eos`` they
    are allowed there only: the text goes on for as long as its grammar lets it, and ends with it. Of a model without end tokens likewise.

    Compiling stops the engine for the time that it takes, about 1 ms for a schema of a few properties; after ``patience`` the request
    is refused and the compiler goes on beside the engine, so that the same grammar may be had later.

    Args:
        info: its ``path`` holds tokenizer.json.
        patience: s.
    """

    def __init__(self, info: ModelInfo, patience: float = PATIENCE_S) -> None:
        self._info = info
        self._patience = patience
        self._compiled: OrderedDict[StructuredOutputs, LLMatcher] = OrderedDict()
        self._under_way: dict[StructuredOutputs, Future[LLMatcher]] = {}

    def guide(self, wanted: StructuredOutputs, ignore_eos: bool = False) -> TokenGuide:
        """A guide at the beginning of a text.

        Raises:
            InvalidRequest: no such grammar, or none that llguidance takes; it took too long; no tokenizer, or not a fitting one.
        """
        self._collect()
        matcher = self._compiled.get(wanted) or self._compile(wanted)
        self._keep(wanted, matcher)
        return TokenGuide(matcher.deep_copy(), self._text_only if ignore_eos else self._usable, frozenset(self._tokens.eos_tokens))

    def _compile(self, wanted: StructuredOutputs) -> LLMatcher:
        if wanted in self._under_way:
            raise InvalidRequest("structured_outputs: this grammar is still being compiled; try later, or simplify it")
        if len(self._under_way) >= MAX_UNDER_WAY:
            raise InvalidRequest(f"structured_outputs: {MAX_UNDER_WAY} large grammars are being compiled just now; try later")
        work = partial(_compiled, self._tokens, wanted)
        try:
            future = on_deep_stack(work)
        except RuntimeError as error:
            raise InvalidRequest(f"structured_outputs cannot be compiled: {error}; try later, or raise the limits of the engine") from error
        try:
            error = future.exception(self._patience)
        except TimeoutError:
            self._under_way[wanted] = future
            limit = f"structured_outputs.{wanted.kind}: takes more than {self._patience:g} s to compile"
            raise InvalidRequest(f"{limit}; simplify it, or try again later: by then it may be compiled") from None
        if error is not None:
            raise error if isinstance(error, InvalidRequest) else InvalidRequest(f"structured_outputs.{wanted.kind}: {error!s:.300}")
        return future.result()

    def _collect(self) -> None:
        """Keep what has been compiled since."""
        for wanted, future in tuple(self._under_way.items()):
            if future.done():
                del self._under_way[wanted]
                if future.exception() is None:
                    self._keep(wanted, future.result())

    def _keep(self, wanted: StructuredOutputs, matcher: LLMatcher) -> None:
        """As the one that was needed last; the one that was needed longest ago may have to go."""
        self._compiled[wanted] = matcher
        self._compiled.move_to_end(wanted)
        if len(self._compiled) > MAX_COMPILED:
            self._compiled.popitem(last=False)

    @property
    def _tokens(self) -> LLTokenizer:
        if isinstance(self._loaded, str):
            raise InvalidRequest(self._loaded)
        return self._loaded

    @cached_property
    def _loaded(self) -> LLTokenizer | str:
        """The vocabulary, as bytes, or why there is none. Takes 0.2 s to load, for 49,000 tokens."""
        path = Path(self._info.path, "tokenizer.json")
        if not self._info.path or not path.is_file():
            reason = f"needs a tokenizer, and the engine of {self._info.name!r} has no tokenizer.json"
            return f"structured_outputs {reason}; leave it out, or serve a model that has one"
        try:
            return _tokenizer(path.read_text(encoding="utf-8"), self._info)
        except (ValueError, OSError) as error:
            return f"structured_outputs: the tokenizer {path} does not fit: {error!s:.300}; leave it out"

    @cached_property
    def _usable(self) -> Bits:
        """All tokens but what llguidance takes for an end token and the engine does not."""
        vocab, ends = self._info.vocab_size, set(self._info.eos_token_ids)
        return bits(slice(vocab), vocab) & ~bits([i for i in self._tokens.eos_tokens if i not in ends and i < vocab], vocab)

    @cached_property
    def _text_only(self) -> Bits:
        return self._usable & ~bits(self._info.eos_token_ids, self._info.vocab_size)


def _tokenizer(text: str, info: ModelInfo) -> LLTokenizer:
    """Ids from the tokenizer's end up to the model's vocabulary have no text, and no grammar allows them."""
    from llguidance import LLTokenizer

    ends = list(info.eos_token_ids)
    try:
        return LLTokenizer(text, n_vocab=info.vocab_size, eos_token=ends or None)
    except ValueError:  # larger than the model's vocabulary, or smaller than an end token
        size = LLTokenizer(text).vocab_size
        return LLTokenizer(text, n_vocab=max(size, info.vocab_size), eos_token=[i for i in ends if i < size] or None)


def _compiled(tokens: LLTokenizer, wanted: StructuredOutputs) -> LLMatcher:
    """A matcher at the beginning, its first mask computed."""
    from llguidance import LLMatcher

    from mqlab.engine.grammarsource import source

    matcher = LLMatcher(tokens, source(wanted), log_level=0, limits=_limits())
    matcher.compute_bitmask()
    if matcher.is_error():
        raise InvalidRequest(f"structured_outputs.{wanted.kind} cannot be followed: {_short(matcher.get_error())}")
    return matcher


def _limits() -> LLParserLimits:
    """Less than llguidance's own: a step of the engine must not wait 0.1 s for one mask, nor a grammar fill its memory."""
    from llguidance import LLParserLimits

    return LLParserLimits(
        initial_lexer_fuel=400_000,
        step_lexer_fuel=100_000,
        step_max_items=20_000,
        max_lexer_states=50_000,
        max_grammar_size=50_000,
        verbose_errors=False,
    )


def _short(message: str) -> str:
    """Its first line, and the cause that a parser names further down."""
    lines = [line.strip() for line in message.splitlines()] or [""]
    cause = next((line for line in lines[1:] if line.startswith("error:")), "")
    return f"{lines[0]:.200} {cause:.200}".strip()
