"""The deltas of one choice, put together to the whole of it."""

from __future__ import annotations

from mqlab.front.choice import ChoiceReader
from mqlab.logprobs import Logprobs
from mqlab.types import Choice, Delta, Finish, Output, TokenLogprob


class ChoiceCollector:
    """Takes every delta of one choice.

    Where nothing has to be found on the way, the text is decoded once, at the end: a twentieth of the work.

    Args:
        reader: the choice's reader, unused so far.

    Attributes:
        prompt_logprobs: those of the prompt, where they came with this choice.
    """

    def __init__(self, reader: ChoiceReader) -> None:
        self._reader = reader
        self._texts: list[str] = []
        self._tokens: list[int] = []
        self._logprobs: list[TokenLogprob] | None = None
        self._prompt_logprobs: Logprobs | None = None
        self.prompt_logprobs: tuple[TokenLogprob | None, ...] | None = None

    def add(self, delta: Delta) -> Choice | None:
        """Add a delta, return the choice once it has ended."""
        if self._reader.stepwise or delta.text is not None:
            output = self._reader.read(delta)
            self._tokens += output.tokens
        else:
            self._tokens += delta.tokens
            self._prompt_logprobs = self._prompt_logprobs or delta.prompt_logprobs
            if delta.finish is None:
                return None
            whole = Delta(delta.id, self._tokens, delta.finish, delta.stop_reason, prompt_logprobs=self._prompt_logprobs, stats=delta.stats)
            output = self._reader.read(whole)
        return self._take(output)

    def _take(self, output: Output) -> Choice | None:
        self._texts.append(output.text)
        if output.logprobs is not None:
            self._logprobs = self._logprobs or []
            self._logprobs += output.logprobs
        if output.prompt_logprobs is not None:
            self.prompt_logprobs = output.prompt_logprobs
        return None if output.finish is None else self._choice(output, output.finish)

    def _choice(self, last: Output, finish: Finish) -> Choice:
        return Choice(
            index=last.index,
            text="".join(self._texts),
            tokens=tuple(self._tokens),
            finish=finish,
            stop_reason=last.stop_reason,
            logprobs=None if self._logprobs is None else tuple(self._logprobs),
        )
