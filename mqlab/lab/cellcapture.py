"""A capture that lasts as long as the cell that began it, whether that cell blocks or awaits."""

from __future__ import annotations

import argparse
import sys
import threading
from collections.abc import Callable
from typing import Any

from IPython.core.interactiveshell import InteractiveShell

from mqlab.errors import MqlabError
from mqlab.flags import read_config
from mqlab.lab.targets import session_of
from mqlab.probes.options import ProfileConfig
from mqlab.record.capture import Capture

LONGEST_S = 3600


def begin_with_cell(shell: InteractiveShell, arguments: argparse.Namespace, whole: bool, done: Callable[[Capture], Any]) -> None:
    """Sample from now until the running cell ends, or until the seconds that were asked for have passed; then call ``done``.

    A capture that cannot be taken says why on stderr when the cell has ended, which it does not disturb.

    Args:
        arguments: of ``profile``.
        whole: no seconds were asked for.
    """
    running = _Running(arguments, whole)

    def ended(*_: Any) -> None:
        shell.events.unregister("post_run_cell", ended)
        try:
            done(running.end())
        except (MqlabError, OSError) as error:
            print(f"%%mqlab profile: {error}", file=sys.stderr)

    shell.events.register("post_run_cell", ended)


class _Running:
    """A capture in a thread of its own."""

    def __init__(self, arguments: argparse.Namespace, whole: bool) -> None:
        self._config = read_config(arguments, ProfileConfig)
        self._whole = whole
        self._seconds = LONGEST_S if whole else self._config.seconds
        self._target = arguments.target
        self._stop = threading.Event()
        self._outcome: Capture | MqlabError | OSError = MqlabError("the capture did not begin")
        self._thread = threading.Thread(target=self._run, name="mqlab-cell-capture", daemon=True)
        self._thread.start()

    def end(self) -> Capture:
        """Stop sampling; what was seen.

        Raises:
            MqlabError: nothing could be sampled. OSError: the folder cannot be written.
        """
        self._stop.set()
        self._thread.join()
        if isinstance(self._outcome, Exception):
            raise self._outcome
        return self._outcome

    def _run(self) -> None:
        config = self._config
        try:
            with session_of(self._target) as session:
                self._outcome = session.profile(
                    self._seconds,
                    rate=config.rate,
                    idle=config.idle,
                    native=config.native,
                    gil=config.gil,
                    folder=config.folder,
                    stop=self._stop,
                    until_stopped=self._whole,
                )
        except (MqlabError, OSError) as error:
            self._outcome = error
