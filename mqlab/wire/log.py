"""Where mqlab's own processes write their log."""

from __future__ import annotations

import logging


def log_to_stderr() -> None:
    """mqlab from INFO on, everybody else from WARNING on. For processes that mqlab owns; a library leaves logging to its user."""
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.getLogger("mqlab").setLevel(logging.INFO)
