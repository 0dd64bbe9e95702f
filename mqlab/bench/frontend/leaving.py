"""How a server that the benchmark started ends when the benchmark is killed."""

from __future__ import annotations

import os
import signal
import threading


def end_with_parent() -> None:
    """SIGTERM to this process at the end of its stdin, a pipe whose other end only the parent has."""
    threading.Thread(target=_wait, name="parent", daemon=True).start()


def _wait() -> None:
    while os.read(0, 1):
        pass
    os.kill(os.getpid(), signal.SIGTERM)
