"""What the runs of a comparison say beside its metric: what explains a figure, and what forbids to believe it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from mqlab.bench.arm_run import Run
from mqlab.bench.serve_result import BUSY

OVERSLEEP_LIMIT = 0.05
"""By which share of a simulated device's time it may be noticed late that it is done with a step."""

_ONE_EACH = 1.005
"""Tokens in a message from which on it is said that they did not come one by one."""

Runs = Mapping[str, Sequence[Run]]
"""By arm."""


def tokens_per_message(runs: Runs) -> dict[str, float]:
    """New tokens in a delta, output or event, by arm, over all its rounds; 1 where each token was seen by itself."""
    sums = {arm: (sum(run.output_tokens for run in own), sum(run.messages for run in own)) for arm, own in runs.items()}
    return {arm: tokens / messages for arm, (tokens, messages) in sums.items() if messages}


def device_share(runs: Runs) -> dict[str, float]:
    """What part of its time an arm's simulated device was busy, over all its rounds; without those that have none."""
    sums = {arm: (sum(run.device.busy_s for run in own), sum(run.elapsed_s for run in own)) for arm, own in runs.items()}
    return {arm: busy / elapsed for arm, (busy, elapsed) in sums.items() if busy}


def oversleep(runs: Runs) -> dict[str, float]:
    """By which share of its time an arm's simulated device was waited for too long, over all its rounds; without those that have none."""
    sums = {arm: (sum(run.device.oversleep_s for run in own), sum(run.device.busy_s for run in own)) for arm, own in runs.items()}
    return {arm: late / busy for arm, (late, busy) in sums.items() if busy}


def late_device(runs: Runs) -> list[str]:
    """Why runs on a simulated device are void: even the most punctual arm was woken late.

    Where threads of one process contend, a thread that wakes waits for the others, and that is the layout's own. The machine's is what all
    arms have.
    """
    late = min(oversleep(runs).values(), default=0.0)
    if late <= OVERSLEEP_LIMIT:
        return []
    limit = f"the limit is {OVERSLEEP_LIMIT:.0%}"
    return [f"the simulated device was late by {late:.1%} or more in every arm ({limit}): run it on a quieter machine"]


def busy_load(runs: Runs) -> list[str]:
    """Why runs over HTTP are void: the load process may be what was measured."""
    busy = [arm for arm, own in runs.items() if np.median([run.load_busiest for run in own]) > BUSY]
    limit = f"it may use {BUSY:.0%} of a CPU"
    return [f"the load process was the limit against {', '.join(busy)} ({limit}): send fewer requests"] if busy else []


def remarks(runs: Runs) -> list[str]:
    """What explains the figures: tokens that came several at once; what of the time a simulated device was busy, or noticed late."""
    packed = [f"{arm}: {mean:.2f} tokens in a message" for arm, mean in tokens_per_message(runs).items() if mean > _ONE_EACH]
    shares = [f"{arm} {share:.0%}" for arm, share in device_share(runs).items()]
    busy = [f"the device was busy: {', '.join(shares)} of the time"] if shares else []
    late = [f"{arm} {share:.1%}" for arm, share in oversleep(runs).items() if share > OVERSLEEP_LIMIT]
    woken = [f"woken late when a step was over, by this part of the device's time: {', '.join(late)}"] if late else []
    return [*packed, *busy, *woken]
