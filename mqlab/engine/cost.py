"""What a request has cost, for its client to know."""

from __future__ import annotations

from mqlab.engine.sequence import Sequence
from mqlab.types import RequestStats


def cost_of(sequence: Sequence, now_ns: int) -> RequestStats:
    """Its times up to ``now_ns`` (of the clock that stamped the sequence), and counts."""
    scheduled = sequence.scheduled_ns if sequence.scheduled_ns >= 0 else now_ns
    first = sequence.first_ns if sequence.first_ns >= 0 else now_ns
    return RequestStats(
        queued_s=(scheduled - sequence.arrived_ns) / 1e9,
        prefill_s=(first - scheduled) / 1e9,
        decode_s=(now_ns - first) / 1e9,
        cached_tokens=sequence.cached,
        preemptions=sequence.preemptions,
        prompt_tokens=sequence.num_prompt,
    )
