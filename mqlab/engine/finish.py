"""When a sequence ends."""

from __future__ import annotations

from collections.abc import Container

from mqlab.engine.sequence import Sequence
from mqlab.types import Finish


def verdict(sequence: Sequence, eos: Container[int]) -> tuple[Finish | None, int | None]:
    """(finish, stop_reason) after the newest token; (None, None) while it goes on.

    An end or stop token wins over a length limit that is reached with the same token, and counts from ``min_tokens`` on.

    Source: vLLM V1, v1/core/sched/utils.py check_stop; unlike there, ``min_tokens`` never hides a length limit.
    """
    params = sequence.params
    count = len(sequence.tokens) - sequence.num_prompt
    if count >= params.min_tokens:
        token = sequence.tokens[-1]
        if token in eos and not params.ignore_eos:
            return "stop", None
        if token in params.stop_token_ids:
            return "stop", token
    return ("length", None) if count >= sequence.max_new else (None, None)
