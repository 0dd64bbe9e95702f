"""The process in which the device bench measures: ``python -m mqlab.bench.device.worker ANSWERS_FD``.

Jobs, which are Specs, arrive pickled on stdin, from the parent and nobody else; each is answered on ANSWERS_FD, pickled, with the rows that
it gave and why it failed. The end of stdin ends the process.
"""

from __future__ import annotations

import os
import pickle
import sys
import traceback
from pathlib import Path
from typing import Any

from mqlab.bench.device.cut_short import CutShort
from mqlab.errors import MqlabError
from mqlab.wire.spec import Spec

HEAD_BYTES = 8
"""Before each answer, its length."""


def run(job: Spec) -> tuple[list[Any], str]:
    """The rows of a job, and why there are no more of them where it failed."""
    try:
        return job.build(), ""
    except CutShort as error:
        return error.rows, f"{error}: {_told(error.__cause__ or error)}"
    except Exception as error:
        return [], _told(error)


def _told(error: BaseException) -> str:
    """In a line: what it is, and where it was raised. What users are told is whole already."""
    if isinstance(error, MqlabError):
        return str(error)
    frame = traceback.extract_tb(error.__traceback__)[-1]
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text} ({'/'.join(Path(frame.filename).parts[-2:])}:{frame.lineno})"


def _main() -> None:
    sys.path[:] = pickle.load(sys.stdin.buffer)
    with os.fdopen(int(sys.argv[1]), "wb", buffering=0) as answers:
        while True:
            try:
                job = pickle.load(sys.stdin.buffer)
            except EOFError:
                break
            data = pickle.dumps(run(job))
            answers.write(len(data).to_bytes(HEAD_BYTES) + data)
    os._exit(0)  # what a broken device is still asked for would hold up the interpreter's own end


if __name__ == "__main__":
    _main()
