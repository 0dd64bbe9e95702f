"""The command that an engine process runs: ``python -m mqlab.wire.boot LIFE_FD REPORT_FD PARENT_PID RUN_DIR ROLE``.

A command of its own, neither forked nor multiprocessing's spawn: the parent may be a notebook with threads, a CUDA context
and a ``__main__`` that must not run twice. What to run arrives pickled on stdin, from the parent and nobody else.
"""

from __future__ import annotations

import os
import pickle
import sys
import traceback
from pathlib import Path

from mqlab.errors import REFUSALS, MqlabError
from mqlab.wire.leaving import leave
from mqlab.wire.log import log_to_stderr
from mqlab.wire.parent import StopOnSigterm, leave_with_parent
from mqlab.wire.report import Reporter
from mqlab.wire.rundir import remove_tree


def main() -> None:
    """Run the entry that the parent sent; report how it ended; leave without waiting for anybody's threads."""
    life_fd, report_fd, parent_pid, run_dir = int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4])
    leave_with_parent(life_fd, parent_pid, run_dir)
    stop = StopOnSigterm()
    log_to_stderr()
    status = _run(Reporter(report_fd), run_dir, stop)
    leave()
    if os.getppid() != parent_pid:
        remove_tree(run_dir)  # nobody else is left to do it
    sys.stdout.flush()
    sys.stderr.flush()
    # Threads may sit in ZeroMQ or torch for ever; an ordinary exit would join them.
    os._exit(status)


def _run(reporter: Reporter, run_dir: Path, stop: StopOnSigterm) -> int:
    try:
        sys.path[:] = pickle.load(sys.stdin.buffer)
        entry = pickle.load(sys.stdin.buffer)
        entry.build(reporter, run_dir)
    except BaseException as error:
        leave()  # here, where the error's frames still hold the core and its probes
        if stop.asked:
            return 0
        if isinstance(error, REFUSALS):
            reporter.refused(error, traceback.format_exc())
            return 1
        # What mqlab raises on purpose says all that a user needs, and the parent prints it.
        if not isinstance(error, MqlabError):
            traceback.print_exc()
        reporter.failed(f"{type(error).__name__}: {error}", traceback.format_exc())
        return 1
    return 0


if __name__ == "__main__":
    main()
