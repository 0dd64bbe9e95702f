"""When a sequence ends."""

from __future__ import annotations

from mqlab.engine.sequence import Sequence
from mqlab.types import Finish


def verdict(sequence: Sequence) -> tuple[Finish | None, int | None]:
    """(finish, stop_reason) after the newest token; (None, None) while it goes on.

    An end or stop token wins over a length limit that is reached with the same token, and counts from ``min_tokens`` on.
    Under a grammar an end token ends the text even with ``ignore_eos``: it is drawn where no text may follow.

    Source: vLLM V1, v1/core/sched/utils.py check_stop; unlike there, ``min_tokens`` never hides a length limit.
    """
    count = len(sequence.tokens)
    token = sequence.tokens[-1]
    if token in sequence.stops and count >= sequence.unbound:
        is_end = token in sequence.eos and not sequence.params.ignore_eos
        return "stop", None if is_end else token
    if sequence.guide is not None and sequence.guide.done:
        return "stop", None
    return ("length", None) if count >= sequence.limit else (None, None)
