"""A core without a model: it answers a prompt with the prompt. For tests of everything that stands above a core."""

from __future__ import annotations

import os
import time
from collections import OrderedDict, deque
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mqlab.clock import Clock, MonotonicClock
from mqlab.engine.admission import capacity
from mqlab.engine.blocks import blocks_for
from mqlab.engine.echo_scores import output_logprobs, prompt_logprobs
from mqlab.engine.lifecycle import LoadableCore
from mqlab.engine.sequence import Sequence
from mqlab.engine.takeoff import Landed
from mqlab.errors import ConfigError, ModelError
from mqlab.plan import SampledTokens
from mqlab.types import ModelInfo

if TYPE_CHECKING:
    import numpy as np

HIDDEN = 8
"""Length of an embedding."""


@dataclass(frozen=True, kw_only=True)
class EchoSetup:
    """What is echoed, and how fast.

    Attributes:
        path: may name a folder with a tokenizer.
        max_num_seqs: requests that run at once.
        device_time: seconds that a round takes on the device, which does one step after the other.
        load_time: seconds that another model takes to be loaded.
        num_scheduler_steps: rounds of a step that brings in no prompt: as many tokens for each request at once.
        async_scheduling: launch the next step while one is in flight.
        multi_step_stream_outputs: a message for each token of several rounds, or one for all.
        cached_tokens: of each prompt, that it says were cached: at most all but the last.
    """

    name: str = "echo"
    path: str = ""
    vocab_size: int = 49152
    max_model_len: int = 8192
    num_blocks: int = 4096
    block_size: int = 16
    max_num_seqs: int = 256
    eos_token_ids: tuple[int, ...] = (2,)
    device_time: float = 0.0
    load_time: float = 0.0
    num_scheduler_steps: int = 1
    async_scheduling: bool = False
    multi_step_stream_outputs: bool = True
    cached_tokens: int = 0

    def info(self) -> ModelInfo:
        """What clients must know."""
        return ModelInfo(
            name=self.name,
            path=self.path,
            architecture="echo",
            vocab_size=self.vocab_size,
            max_model_len=self.max_model_len,
            max_prompt_len=capacity(self.max_model_len, self.num_blocks, self.block_size) - 1,
            eos_token_ids=tuple(self.eos_token_ids),
            num_blocks=self.num_blocks,
            block_size=self.block_size,
            pid=os.getpid(),
            hidden_size=HIDDEN,
            max_num_seqs=self.max_num_seqs,
        )


@dataclass(frozen=True, slots=True)
class EchoFlight:
    """A step that the device is done with at ``due`` (s, time.monotonic), and that gives ``sampled``."""

    sampled: SampledTokens
    due: float

    def wait(self) -> SampledTokens:
        """What was sampled, when it is due."""
        if (seconds := self.due - time.monotonic()) > 0:
            time.sleep(seconds)
        return self.sampled


class EchoCore(LoadableCore[EchoSetup]):
    """Obeys the Core contract; each step gives every running request the next id of its prompt, round and round.

    Up to ``max_num_seqs`` requests run, first come first served. Blocks are counted, never scarce. Nothing is masked: below ``min_tokens``
    an end token is given out and does not end the request. An embedding is made of the prompt's ids, logprobs are
    made up. ``load`` takes any name, and fields of EchoSetup as options.

    Args:
        setup: what to echo.
        clock: stamps the statistics.
    """

    def __init__(self, setup: EchoSetup, clock: Clock) -> None:
        super().__init__(setup, setup.info(), clock)
        self.calls["reset_prefix_cache"] = lambda: True

    def _serve(self, info: ModelInfo, setup: EchoSetup) -> None:
        self._max_num_seqs = setup.max_num_seqs
        self._device_time = setup.device_time
        self._num_scheduler_steps = setup.num_scheduler_steps
        self._cached_tokens = setup.cached_tokens
        self._waiting: OrderedDict[Sequence, None] = OrderedDict()
        self._running: dict[Sequence, None] = {}
        self._stepping: deque[Landed] = deque()
        self._due = 0.0
        self._special = 0  # live requests that want more than tokens
        depth = 2 if setup.async_scheduling else 1
        self._desk.serve(info, 0, self._release, self._gauges, depth, setup.multi_step_stream_outputs)

    def _queue(self, sequence: Sequence) -> None:
        self._waiting[sequence] = None
        self._special += _is_special(sequence)

    def _launch(self) -> EchoFlight | None:
        rounds, prompts = self._num_scheduler_steps, 0
        while self._waiting and len(self._running) < self._max_num_seqs:
            sequence, _ = self._waiting.popitem(last=False)
            self._running[sequence] = None
            prompts += self._begin(sequence)
            rounds = 1
        flown = tuple([one for one in self._running if len(one.tokens) + one.owed < one.limit or not one.max_new])
        if not flown:
            return None
        self._due = max(self._due, time.monotonic()) + self._device_time * rounds
        flight = EchoFlight(self._more(flown, rounds) if self._special else self._tokens(flown, rounds), self._due)
        self._stepping[-1].tokens = prompts + len(flown) * rounds
        return flight

    def _begin(self, sequence: Sequence) -> int:
        """It runs from now on: first its prompt, with the draw of a token. Returns what it runs beside that token."""
        sequence.scheduled_ns = self._clock.now_ns()
        sequence.cached = min(self._cached_tokens, sequence.num_prompt - 1)
        return sequence.num_prompt - 1 - sequence.cached

    def _tokens(self, flown: tuple[Sequence, ...], rounds: int) -> SampledTokens:
        """A step of requests that want nothing but tokens."""
        self._stepping.append(Landed(flown, list(flown), []))
        return SampledTokens(tuple([_owe(sequence, rounds) for sequence in flown]), rounds)

    def _more(self, flown: tuple[Sequence, ...], rounds: int) -> SampledTokens:
        """A step of which some want logprobs or an embedding, or nothing new."""
        drew, done = [one for one in flown if one.draws], [one for one in flown if not one.draws]
        self._stepping.append(Landed(flown, drew, done))
        pooled = {row: _state(sequence) for row, sequence in enumerate(flown) if sequence.pooling is not None}
        prompts = prompt_logprobs(flown, self.info.vocab_size)
        tokens = tuple([_owe(sequence, rounds) for sequence in drew])
        return SampledTokens(tokens, rounds, output_logprobs(drew, tokens, self.info.vocab_size), prompts, pooled)

    def _land(self, sampled: SampledTokens) -> Landed:
        return self._stepping.popleft()

    def _changed(self, setup: EchoSetup, model: str, options: Mapping[str, Any]) -> EchoSetup:
        known = {field.name for field in fields(EchoSetup)} - {"name"}
        if unknown := sorted(options.keys() - known):
            raise ConfigError(f"load does not take {', '.join(unknown)}; it takes {', '.join(sorted(known))}")
        return replace(setup, **{"path": "", **options, "name": model})

    def _find(self, setup: EchoSetup) -> None:
        if setup.path and not Path(setup.path).is_dir():
            raise ModelError(f"no folder at {setup.path!r}")

    def _open(self, setup: EchoSetup) -> ModelInfo:
        time.sleep(setup.load_time)
        if setup.path and not Path(setup.path, "tokenizer.json").is_file():
            raise ModelError(f"{setup.path} holds no tokenizer.json")
        return setup.info()

    def _rest(self) -> None:
        """Its KV memory is a number."""

    def _resume(self) -> None:
        time.sleep(self._setup.load_time)

    def _shut(self) -> None:
        """There is nothing to free."""

    def _release(self, sequence: Sequence) -> None:
        queue = self._running if sequence in self._running else self._waiting
        del queue[sequence]
        self._special -= _is_special(sequence)

    def _gauges(self) -> dict[str, int]:
        used = sum(blocks_for(len(sequence.tokens), self.info.block_size) for sequence in self._running)
        total = self.info.num_blocks if self.info.state == "ready" else 0
        return {"running": len(self._running), "waiting": len(self._waiting), "blocks_used": min(used, total), "blocks_total": total}


def _is_special(sequence: Sequence) -> bool:
    params = sequence.params
    return not sequence.draws or params.logprobs is not None or params.prompt_logprobs is not None


def _state(sequence: Sequence) -> np.ndarray:
    """What a model's final hidden states would be, float32 [HIDDEN]: as ``SampledTokens.pooled`` has them."""
    import numpy as np  # an echo that embeds nothing starts without it

    assert sequence.pooling is not None, "asked of those that are embedded"
    ids = np.array(sequence.tokens, np.float64)[:, None]
    states = np.cos(ids * np.arange(1, HIDDEN + 1) / HIDDEN).astype(np.float32)
    return {"mean": states.sum(axis=0), "last": states[-1], "cls": states[0]}[sequence.pooling.kind]


def _owe(sequence: Sequence, rounds: int) -> tuple[int, ...]:
    """What an endless repetition of the prompt goes on with, as far as the request may; the sequence is owed it from here on."""
    begin, prompt = sequence.output_index, sequence.num_prompt
    if rounds == 1:
        sequence.owed += 1
        return (sequence.tokens[begin % prompt],)
    ids = tuple(sequence.tokens[(begin + ahead) % prompt] for ahead in range(min(rounds, sequence.left)))
    sequence.owed += len(ids)
    return ids


def build(**setup: Any) -> EchoCore:
    """An EchoCore, for ``Spec("mqlab.engine.echo:build", {...})`` with fields of EchoSetup."""
    return EchoCore(EchoSetup(**setup), MonotonicClock())
