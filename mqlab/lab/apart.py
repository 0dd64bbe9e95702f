"""A function in a process of its own: what a notebook measures must not share its kernel's GIL.

``python -m mqlab.lab.apart FD`` reads a pickled call on stdin, from the parent and nobody else, and writes its outcome to FD.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import traceback
from typing import Any

from mqlab.errors import BenchError
from mqlab.wire.spec import Spec

_KILL_WAIT_S = 5.0


def run_apart(target: str, **kwargs: Any) -> Any:
    """Call ``module:function`` in a new process and return what it returns; its stderr (progress) goes to this process's. Blocks.

    An interrupt ends the process, and the engines that it started with it.

    Raises:
        what the function raised; BenchError: the process ended without an outcome.
    """
    read, write = os.pipe()
    command = [sys.executable, "-P", "-m", "mqlab.lab.apart", str(write)]
    with os.fdopen(read, "rb") as outcome:
        try:
            child = subprocess.Popen(command, stdin=subprocess.PIPE, pass_fds=(write,), process_group=0)
        finally:
            os.close(write)
        try:
            assert child.stdin is not None
            child.stdin.write(pickle.dumps(sys.path) + pickle.dumps(Spec(target, kwargs)))
            child.stdin.close()
            data = outcome.read()
            child.wait()
        except BaseException:
            _end(child)
            raise
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
    try:
        outcome = True, call.build()
    except KeyboardInterrupt:
        os._exit(130)
    except Exception as error:
        traceback.print_exc()
        outcome = False, error
    with os.fdopen(int(sys.argv[1]), "wb") as pipe:
        pipe.write(pickle.dumps(outcome))


if __name__ == "__main__":
    _main()
