"""What the contract found of a topology: a table by theme, and of each failure what was demanded, what was found, and where."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from mqlab.contract.messages import Case, Line, Outcome
from mqlab.contract.options import CheckConfig
from mqlab.topologies import layout_label

COLUMNS = ("passed", "failed", "does not apply", "left out")
_MARKS = {"passed": "✓", "failed": "✗", "does not apply": "–", "left out": "–"}
_COLOURS = {"passed": "#009E73", "failed": "#D55E00"}
_KEPT_LINES = 12


@dataclass(frozen=True)
class Result:
    """One check: what it demands, and how it went; ``outcome`` is None where it was not run."""

    case: Case
    outcome: Outcome | None

    @property
    def status(self) -> str:
        """One of COLUMNS."""
        if self.outcome is None:
            return self.case.skipped
        return "passed" if self.outcome.passed else "failed"


class Verdict:
    """Every check that was asked for.

    Attributes:
        config: what was asked for.
        results: in the contract's order.
        seconds: that it took.
    """

    def __init__(self, config: CheckConfig, cases: Sequence[Case], outcomes: Sequence[Outcome], seconds: float) -> None:
        known = {outcome.name: outcome for outcome in outcomes}
        self.config = config
        self.results = [Result(case, known.get(case.name)) for case in cases]
        self.seconds = seconds

    @property
    def ok(self) -> bool:
        """Whether none failed."""
        return not self.failed

    @property
    def failed(self) -> list[Result]:
        """The checks that the layout does not pass."""
        return [result for result in self.results if result.status == "failed"]

    def count(self, status: str, theme: str | None = None) -> int:
        """How many checks, of one theme or of all, came out like that."""
        return sum(result.status == status and theme in (None, result.case.theme) for result in self.results)

    def __repr__(self) -> str:
        return f"<Verdict: {self._sentence()}>"

    def __str__(self) -> str:
        head = f"{'theme':<16}" + "".join(f"{name:>16}" for name in COLUMNS) + f"{'seconds':>10}"
        rows = [
            f"{theme:<16}" + "".join(f"{self.count(name, theme) or '':>16}" for name in COLUMNS) + f"{self._seconds_of(theme):>10.1f}"
            for theme in self._themes()
        ]
        return "\n".join([self._sentence(), "", head, *rows, *(line for result in self.failed for line in ["", *_lines(result)])])

    def _repr_html_(self) -> str:
        head = "".join(f"<th>{name}</th>" for name in ("theme", *COLUMNS, "seconds"))
        rows = "".join(self._row_html(theme) for theme in self._themes())
        return (
            f'<div style="color:var(--jp-ui-font-color1, inherit)"><b>{escape(self._sentence())}</b><table><tr>{head}</tr>{rows}</table>'
            f"{''.join(map(_failure_html, self.failed))}{self._all_html()}</div>"
        )

    def _sentence(self) -> str:
        passed, failed = self.count("passed"), len(self.failed)
        rest = [f"{count} {name}" for name in COLUMNS[2:] if (count := self.count(name))]
        hint = " (--full runs them)" if self.count("left out") else ""
        verdict = f"{failed} of {passed + failed} checks failed" if failed else f"all {passed} checks passed"
        return f"{layout_label(self.config.topology)} ({self.config.codec}): {', '.join([verdict, *rest])}{hint}; {self.seconds:.0f} s"

    def _themes(self) -> list[str]:
        return list(dict.fromkeys(result.case.theme for result in self.results))

    def _seconds_of(self, theme: str) -> float:
        return sum(result.outcome.seconds for result in self.results if result.outcome and result.case.theme == theme)

    def _row_html(self, theme: str) -> str:
        counts = "".join(f"<td>{self.count(name, theme) or ''}</td>" for name in COLUMNS)
        return f'<tr><td style="text-align:left">{escape(theme)}</td>{counts}<td>{self._seconds_of(theme):.1f}</td></tr>'

    def _all_html(self) -> str:
        rows = "".join(map(_result_html, self.results))
        return f"<details><summary>every check</summary><table>{rows}</table></details>"


def _lines(result: Result) -> list[str]:
    """A failure, for a terminal."""
    outcome = result.outcome
    assert outcome is not None
    return [
        f"FAILED {result.case.theme}: {result.case.name}",
        f"  demanded  {result.case.demand}",
        *_hanging("  found     ", _shortened(outcome.error.splitlines())),
        *_hanging("  at        ", [_at(line) for line in outcome.trail]),
        *_hanging("  printed   ", _shortened(outcome.printed.splitlines())),
        f"  the check {_short(result.case.where)}",
    ]


def _shortened(lines: list[str]) -> list[str]:
    """Without the middle of what is too long to read."""
    return lines if len(lines) <= 2 * _KEPT_LINES else [*lines[:_KEPT_LINES], "…", *lines[-_KEPT_LINES:]]


def _hanging(label: str, lines: Sequence[str]) -> list[str]:
    return [f"{label if number == 0 else ' ' * len(label)}{line}" for number, line in enumerate(lines)]


def _at(line: Line) -> str:
    return f"{_short(line.file)}:{line.number}  {line.code}"


def _short(path: str) -> str:
    """As seen from here where that is shorter."""
    near = os.path.relpath(path)
    return near if not near.startswith("..") else path


def _failure_html(result: Result) -> str:
    first, *rest = _lines(result)
    summary = f'<summary style="color:{_COLOURS["failed"]}">{_MARKS["failed"]} {escape(first)}</summary>'
    return f'<details open>{summary}<pre style="white-space:pre-wrap">{escape(chr(10).join(rest))}</pre></details>'


def _result_html(result: Result) -> str:
    colour = _COLOURS.get(result.status, "inherit")
    seconds = "" if result.outcome is None else f"{result.outcome.seconds:.2f} s"
    left = 'style="text-align:left"'
    return (
        f'<tr><td style="color:{colour}">{_MARKS[result.status]} {result.status}</td><td {left}>{result.case.theme}</td>'
        f'<td {left} title="{escape(result.case.demand)}">{escape(result.case.name)}</td><td>{seconds}</td></tr>'
    )
