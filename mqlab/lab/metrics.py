"""What a running engine does, as a table."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mqlab.lab.panels import footer, summary
from mqlab.lab.rows import rows_html, rows_text
from mqlab.lab.view import View

if TYPE_CHECKING:
    import pandas


class Metrics:
    """The figures of a session at one moment: rates over the last two seconds, gauges, means since the start.

    Args:
        view: of the session; read once, now.
    """

    def __init__(self, view: View) -> None:
        meters = view.meters()
        self.title = view.title
        self.meters = meters
        self.rows = [*summary(meters), ("probes", footer(meters))]

    def to_pandas(self) -> pandas.DataFrame:
        """One row a figure: ``figure`` and ``value``, both text; the numbers themselves are in ``meters``."""
        import pandas

        return pandas.DataFrame(self.rows, columns=["figure", "value"])

    def __repr__(self) -> str:
        return rows_text(f"{self.title}:", self.rows)

    def _repr_html_(self) -> str:
        return rows_html(self.title, self.rows)
