"""A function in a process of its own: what a notebook measures must not share its kernel's GIL.

``python -m mqlab.lab.apart FD`` reads a pickled call on stdin, from the parent and nobody else, and writes its outcome to FD. When
stdin ends before that, the parent is gone, and so is this process.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import threading
import traceback
from typing import Any

from mqlab.errors import BenchError, MqlabError
from mqlab.wire.spawn import spawn
from mqlab.wire.spec import Spec

_KILL_WAIT_S = 5.0


def run_apart(call: Spec, *, quiet: bool = False) -> Any:
    """Make a call in a new process and return what it returns. Blocks.

    An interrupt ends the process, and the engines that it started with it; so does the end of this one.

    Args:
        quiet: drop what it writes to stderr, which is its progress.

    Raises:
        what the function raised; BenchError: the process ended without an outcome.
    """
    read, write = os.pipe()
    command = [sys.executable, "-P", "-m", "mqlab.lab.apart", str(write)]
    stderr = subprocess.DEVNULL if quiet else None
    with os.fdopen(read, "rb") as outcome, os.fdopen(write, "wb") as theirs:
        # A group of its own: an interrupt from a terminal comes here, and what follows from it is decided here.
        child = spawn(command, stdin=subprocess.PIPE, stderr=stderr, pass_fds=(write,), process_group=0)
        assert child.stdin is not None
        try:
            theirs.close()
            child.stdin.write(pickle.dumps(sys.path) + pickle.dumps(call))
            child.stdin.flush()
            data = outcome.read()
            child.wait()
        except BaseException:
            _end(child)
            raise
        finally:
            child.stdin.close()
    return _unpacked(data, child.returncode)


def _end(child: subprocess.Popen[bytes]) -> None:
    child.terminate()
    try:
        child.wait(_KILL_WAIT_S)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()


def _unpacked(data: bytes, status: int) -> Any:
    if not data:
        raise BenchError(f"the measuring process ended with status {status} and said nothing")
    ok, value = pickle.loads(data)
    if ok:
        return value
    raise value


def _main() -> None:
    sys.path[:] = pickle.load(sys.stdin.buffer)
    call = pickle.load(sys.stdin.buffer)
    threading.Thread(target=_leave_with_parent, daemon=True).start()
    try:
        outcome = pickle.dumps((True, call.build()))
    except Exception as error:
        outcome = pickle.dumps((False, _portable(error)))
    with os.fdopen(int(sys.argv[1]), "wb") as pipe:
        pipe.write(outcome)


def _leave_with_parent() -> None:
    while os.read(0, 1):
        pass
    os._exit(1)


def _portable(error: Exception) -> Exception:
    """The error as it can be raised elsewhere, with where it came from, unless its message says all that is needed."""
    trace = "".join(traceback.format_exception(error))
    try:
        copy = pickle.loads(pickle.dumps(error))
    except Exception:
        copy = BenchError(f"{type(error).__name__}: {error}")
    if not isinstance(error, MqlabError):
        copy.add_note(f"In the measuring process:\n{trace}")
    return copy


if __name__ == "__main__":
    _main()
