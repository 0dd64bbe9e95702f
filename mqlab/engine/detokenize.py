"""Detokenising on the engine's side: a core whose deltas carry text as well, so that the cost of doing it there can be measured.

Source: vLLM V0 detokenised in the engine's own loop. Requests with stop strings are left to the front, which must look for them
token by token.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from mqlab.engine.core import Core
from mqlab.errors import ModelError
from mqlab.plan import InFlight, SampledTokens
from mqlab.text.current import CurrentTokenizer
from mqlab.text.detokenizer import Detokenizer
from mqlab.text.tokenizer import Tokenizer
from mqlab.types import Call, Delta, Event, Model, ModelInfo, Request, Step


class DetokenizingCore:
    """Obeys the Core contract; fills ``Delta.text``.

    Args:
        core: the core inside.

    Raises:
        ModelError: its model has no tokenizer.
    """

    def __init__(self, core: Core) -> None:
        if not core.info.path:
            raise ModelError(f"engine {core.info.name!r} names no model folder, so it has no tokenizer: use --detokenize none")
        self._core = core
        self._current = CurrentTokenizer(Tokenizer.load(Path(core.info.path)), core.info.epoch)
        self._open: dict[tuple[int, str], Detokenizer] = {}

    @property
    def info(self) -> ModelInfo:
        """What clients must know."""
        return self._core.info

    @property
    def calls(self) -> Mapping[str, Callable[..., Any]]:
        """Control calls by name."""
        return self._core.calls

    @property
    def has_work(self) -> bool:
        """Whether a step would do anything."""
        return self._core.has_work

    @property
    def loading(self) -> bool:
        """Whether the next flight, or the one that is out, is part of a call."""
        return self._core.loading

    def check(self) -> None:
        """See that the core inside is well."""
        self._core.check()

    def add(self, request: Request) -> None:
        """Queue a request.

        Raises:
            InvalidRequest: the core refuses it.
        """
        self._core.add(request)
        if (tokenizer := self._current.tokenizer) is not None and not request.params.stop:
            self._open[request.client, request.id] = Detokenizer(tokenizer, request.params)

    def abort(self, ids: tuple[str, ...] | None, client: int = 0) -> list[Delta]:
        """End requests of a client."""
        return [self._fill(delta, client) for delta in self._core.abort(ids, client)]

    def call(self, call: Call) -> list[Event]:
        """Run one control call, or leave it to ``finish``."""
        return self._filled(self._core.call(call))

    def begin(self) -> InFlight:
        """Start one step."""
        return self._core.begin()

    def finish(self, sampled: SampledTokens) -> list[Event]:
        """Account one step; its deltas get their text."""
        return self._filled(self._core.finish(sampled))

    def close(self) -> None:
        """Close the core inside."""
        self._core.close()

    def _filled(self, events: list[Event]) -> list[Event]:
        for event in events:
            if type(event) is Step:
                for delta in event.deltas:
                    self._fill(delta, event.client)
            elif type(event) is Model:
                self._current.take(event.info)
        return events

    def _fill(self, delta: Delta, client: int) -> Delta:
        detokenizer = self._open.get((client, delta.id))
        if detokenizer is not None:
            delta.text = detokenizer.push(delta.tokens, delta.finish)
            if delta.finish is not None:
                del self._open[client, delta.id]
        return delta
