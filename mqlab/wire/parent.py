"""How a child notices that its parent is gone. An engine never outlives its parent, and never signals it.

Two independent ways. A pipe whose end-of-file means "parent died" is read by a thread, which removes the run folder, for nobody
else is left to do so, and ends the process; it needs the GIL for that. Where the GIL is held, the kernel's parent-death signal
(Linux) meets a handler in C that sets an alarm, and the alarm ends the process a second later.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
import time
from pathlib import Path
from types import FrameType

from mqlab.wire.rundir import remove_tree
from mqlab.wire.tracing import allow_tracing

_PR_SET_PDEATHSIG = 1
_AGAIN_S = 0.02
_SIGTERM = bytes([signal.SIGTERM])


class Stopped(BaseException):
    """SIGTERM arrived: unwind and leave. Not an Exception, so no handler of errors takes it for one."""


def leave_with_parent(life_fd: int, parent_pid: int, run_dir: Path) -> None:
    """Arrange that this process ends with its parent. Call first thing in the child, from its main thread.

    Args:
        life_fd: read end of a pipe whose only write end the parent holds.
        parent_pid: who launched this process.
        run_dir: removed when the parent is found dead.
    """
    threading.Thread(target=_wait_for_end, args=(life_fd, run_dir), name="mqlab-parent", daemon=True).start()
    if sys.platform == "linux":
        libc = ctypes.CDLL(None)
        # The handler is libc's alarm itself, called with the signal's number, which is 1: in one second SIGALRM ends the process
        # unless the thread above, which also removes the folder, was faster. Not SIGTERM: that is the parent's way to ask for a stop.
        libc.signal(signal.SIGHUP, libc.alarm)
        end_with_launcher(signal.SIGHUP)
    allow_tracing()
    if os.getppid() != parent_pid:
        _leave(run_dir)


def end_with_launcher(number: signal.Signals) -> None:
    """Be sent a signal when the process that launched this one is gone, by whatever end. Linux; elsewhere nothing happens."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number)


class StopOnSigterm:
    """From here on SIGTERM raises Stopped in the main thread, once; SIGINT is the parent's business and is ignored.

    A signal that comes just before the main thread begins to wait for something does not end that wait. So another thread, which C's own
    handler wakes, sends it to the main thread again until it is seen. An event loop that handles SIGTERM takes both over.

    Attributes:
        asked: SIGTERM has come. Native code may turn Stopped into an error of its own, which is then no failure.
    """

    def __init__(self) -> None:
        self.asked = False
        told, tell = os.pipe()
        os.set_blocking(tell, False)
        signal.set_wakeup_fd(tell, warn_on_full_buffer=False)
        signal.signal(signal.SIGTERM, self._raise_stopped)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        threading.Thread(target=self._insist, args=(told, threading.get_ident()), name="mqlab-stop", daemon=True).start()

    def _raise_stopped(self, signum: int, frame: FrameType | None) -> None:
        del signum, frame
        if not self.asked:
            self.asked = True
            raise Stopped

    def _insist(self, told: int, main: int) -> None:
        while os.read(told, 1) != _SIGTERM:  # others may be handled here as well
            pass
        while not self.asked:
            signal.pthread_kill(main, signal.SIGTERM)
            time.sleep(_AGAIN_S)


def _wait_for_end(life_fd: int, run_dir: Path) -> None:
    while os.read(life_fd, 1):
        pass
    _leave(run_dir)


def _leave(run_dir: Path) -> None:
    remove_tree(run_dir)
    os._exit(1)
