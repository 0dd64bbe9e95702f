"""Several tokens of a request that came in one step, as a message for each."""

from __future__ import annotations

from mqlab.types import Delta, Step


def one_by_one(step: Step) -> list[Step]:
    """The step as one for each of its tokens in order; what a request gained beside tokens comes with its last one."""
    rounds = max([len(delta.tokens) for delta in step.deltas])
    if rounds <= 1:
        return [step]
    steps = [Step([], client=step.client) for _ in range(rounds)]
    for delta in step.deltas:
        for index, part in enumerate(_parts(delta)):
            steps[index].deltas.append(part)
    return steps


def _parts(delta: Delta) -> list[Delta]:
    last = len(delta.tokens) - 1
    if last < 1:
        return [delta]
    cuts = [None] * (last + 1) if delta.logprobs is None else delta.logprobs.each()
    parts = [Delta(delta.id, [token], logprobs=own) for token, own in zip(delta.tokens, cuts, strict=True)]
    parts[0].prompt_logprobs = delta.prompt_logprobs
    parts[last].finish, parts[last].stop_reason, parts[last].error = delta.finish, delta.stop_reason, delta.error
    parts[last].stats = delta.stats
    return parts
