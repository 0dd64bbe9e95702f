"""What a job raises that fails when it has figures already."""

from __future__ import annotations

from collections.abc import Sequence

from mqlab.model.measure.rows import Row


class CutShort(Exception):
    """Its figures count, and whatever it is raised from is why there are no more. The device may be broken for this process.

    Args:
        rows: that there were, at least one.
    """

    def __init__(self, rows: Sequence[Row]) -> None:
        super().__init__(f"behind {len(rows)} figures")
        self.rows = list(rows)
