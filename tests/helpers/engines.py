"""A front over an engine on the test's own loop, and answers to be compared: streamed with whole, and with those of another engine."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mqlab.client.base import BaseClient
from mqlab.config import EngineConfig
from mqlab.front.frontend import Frontend
from mqlab.front.prompts import Prompt
from mqlab.topologies import make_client
from mqlab.types import Choice, Completion, EngineStats, SamplingParams, TokenLogprob, Usage
from mqlab.wire.wiring import Wiring

TIE = 1e-4
"""Of float32: greedy texts may part where the best two logits are this close, and nowhere else."""


def client_of(folder: Path, topology: str = "inproc", **config: Any) -> BaseClient:
    """A client, not started, of an engine of its own; ``config`` are fields of EngineConfig."""
    fixed: dict[str, Any] = {"model": str(folder), "dtype": "float32", "num_threads": 1, "log_stats_interval": 0}
    return make_client(topology, Wiring.of(EngineConfig(**{**fixed, **config})))


@asynccontextmanager
async def front_of(folder: Path, topology: str = "inproc", **config: Any) -> AsyncIterator[Frontend]:
    """A front over an engine of its own."""
    async with client_of(folder, topology, **config) as client:
        yield Frontend.of(client)


@dataclass(frozen=True)
class Answer:
    """What came of one request: its choices and its usage."""

    choices: tuple[Choice, ...]
    usage: Usage | None
    prompt_logprobs: tuple[TokenLogprob | None, ...] | None = None

    @staticmethod
    def of(completion: Completion) -> Answer:
        """Of a request that was not streamed."""
        return Answer(completion.choices, completion.usage, completion.prompt_logprobs)


async def whole(front: Frontend, prompt: Prompt, params: SamplingParams, **more: Any) -> Answer:
    """The answer that comes at once."""
    return Answer.of(await front.complete(prompt, params, **more))


async def streamed(front: Frontend, prompt: Prompt, params: SamplingParams, leave_after: int | None = None, **more: Any) -> Answer:
    """The answer put together from its stream, or what had come of it when it was left after so many outputs."""
    choices: dict[int, Choice] = {}
    usage, prompt_logprobs, count = None, None, 0
    async with aclosing(front.generate(prompt, params, **more)) as outputs:
        async for output in outputs:
            before = choices.get(output.index)
            assert before is None or before.finish == "abort", "nothing follows an end"
            choices[output.index] = Choice(
                index=output.index,
                text=output.text if before is None else before.text + output.text,
                tokens=output.tokens if before is None else before.tokens + output.tokens,
                finish=output.finish or "abort",
                stop_reason=output.stop_reason,
                logprobs=joined(before.logprobs if before is not None else None, output.logprobs),
            )
            usage = output.usage
            prompt_logprobs = joined(prompt_logprobs, output.prompt_logprobs)
            count += 1
            if count == leave_after:
                break
    return Answer(tuple(choices[index] for index in sorted(choices)), usage, prompt_logprobs)


def joined(first: tuple[Any, ...] | None, second: tuple[Any, ...] | None) -> tuple[Any, ...] | None:
    """Both, where there are any."""
    return second if first is None else first if second is None else first + second


def difference(got: Answer, wanted: Answer) -> str:
    """What tells two answers apart beyond the rounding of logprobs; empty for nothing."""
    if got.usage != wanted.usage or len(got.choices) != len(wanted.choices):
        return f"{got.usage} of {len(got.choices)}, not {wanted.usage} of {len(wanted.choices)}"
    for one, other in zip(got.choices, wanted.choices, strict=True):
        told, asked = (one.text, one.tokens, one.finish, one.stop_reason), (other.text, other.tokens, other.finish, other.stop_reason)
        if told != asked:
            return f"choice {one.index}: {told}, not {asked}"
        if not same_logprobs(one.logprobs, other.logprobs):
            return f"choice {one.index}: logprobs {one.logprobs}, not {other.logprobs}"
    return "" if same_logprobs(got.prompt_logprobs, wanted.prompt_logprobs) else "logprobs of the prompt"


def same_logprobs(got: Sequence[TokenLogprob | None] | None, wanted: Sequence[TokenLogprob | None] | None) -> bool:
    """Equal but for rounding, which may also turn round two that are equally likely."""
    if got is None or wanted is None:
        return got is wanted
    return len(got) == len(wanted) and all(map(_same, got, wanted))


def _same(got: TokenLogprob | None, wanted: TokenLogprob | None) -> bool:
    if got is None or wanted is None:
        return got is wanted
    own = (got.token, got.text, got.raw, len(got.top)) == (wanted.token, wanted.text, wanted.raw, len(wanted.top))
    pairs = zip((got, *got.top), (wanted, *wanted.top), strict=False)
    return own and all(one.logprob == other.logprob or abs(one.logprob - other.logprob) < 1e-3 for one, other in pairs)


def parting(got: Choice, wanted: Choice) -> int | None:
    """Where a greedy text parts from what is wanted; None where it does not, or parts at a tie.

    Args:
        wanted: asked for with ``logprobs=2`` at least, of what was drawn from.
    """
    assert wanted.logprobs is not None
    pairs = zip(got.tokens, wanted.tokens, strict=False)
    at = next((i for i, (one, other) in enumerate(pairs) if one != other), None)
    if at is None:
        return None if len(got.tokens) == len(wanted.tokens) else min(len(got.tokens), len(wanted.tokens))
    best, second = wanted.logprobs[at].top[:2]
    tied = best.logprob - second.logprob < TIE and got.tokens[at] == second.token
    return None if tied else at


def at_rest(stats: EngineStats) -> bool:
    """Whether nothing runs or waits, and no block is held."""
    return (stats.running, stats.waiting, stats.blocks_used) == (0, 0, 0)
