"""torch.profiler inside an engine: operators and device kernels, as a Chrome trace for https://ui.perfetto.dev.

A control call starts it by name (``start_profile``, kind "torch"): an engine that is not asked never imports this module. What torch does
to sum operators up takes ten seconds for twenty steps of a 135M model, so nothing is summed up here: ``record.operators`` reads the file.
"""

from __future__ import annotations

from pathlib import Path

from torch import cuda
from torch.profiler import ProfilerActivity, profile

MAX_STEPS = 20
"""Steps in a capture at most: it then ends by itself, and waits to be written. Bounds the file (0.8 MB a step) and the time to stop."""


class TorchProfile:
    """Runs from construction on, in the thread that makes it. The first one of a process takes seconds to begin."""

    def __init__(self) -> None:
        device = [ProfilerActivity.CUDA] if cuda.is_available() else []
        self._profile = profile(activities=[ProfilerActivity.CPU, *device])
        self._steps = 0
        self._running = True
        self._profile.start()

    def stepped(self) -> None:
        """Count a step; the last one ends the capture."""
        self._steps += 1
        if self._steps == MAX_STEPS:
            self.drop()

    def stop(self, path: Path) -> None:
        """End it and write the trace.

        Raises:
            OSError: it could not be written.
        """
        self.drop()
        path.touch()  # torch itself reports no error
        self._profile.export_chrome_trace(str(path))

    def drop(self) -> None:
        """End it; idempotent."""
        if self._running:
            self._running = False
            self._profile.stop()
