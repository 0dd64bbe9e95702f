"""How many files a process may have open."""

from __future__ import annotations

import contextlib
import resource


def allow_many_files() -> int:
    """As many as the system lets this user have, here and in processes started from here: each connection, and so each request under
    way, is one.

    Returns:
        the limit.
    """
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    with contextlib.suppress(ValueError, OSError):  # macOS caps below what it calls the hard limit
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]
