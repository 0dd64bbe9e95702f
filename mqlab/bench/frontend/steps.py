"""The floor's source of steps: ``python -m mqlab.bench.frontend.steps SECONDS``, a byte on stdout for each step.

A process of its own, as an engine is. It begins and stops at a byte on stdin, and keeps time as the echo core does: each step takes so long
after the one before it, 0 as fast as they are taken.
"""

from __future__ import annotations

import contextlib
import os
import select
import sys
import time


def main() -> None:
    """Until the end of stdin."""
    step_s = float(sys.argv[1])
    with contextlib.suppress(BrokenPipeError):
        while os.read(0, 1):
            _steps(step_s)
            os.read(0, 1)


def _steps(step_s: float) -> None:
    due = time.monotonic()
    while not select.select([0], [], [], 0)[0]:
        due = max(due, time.monotonic()) + step_s
        if (seconds := due - time.monotonic()) > 0:
            time.sleep(seconds)
        os.write(1, b"\0")


if __name__ == "__main__":
    main()
