"""What changed between two captures."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mqlab.record.flamediff import draw_difference
from mqlab.record.pages import difference_html

if TYPE_CHECKING:
    import pandas

    from mqlab.record.capture import Capture


@dataclass(frozen=True)
class Change:
    """A frame's share of all samples in two captures, 0 to 1: ``own`` as the innermost, ``total`` anywhere in a stack."""

    frame: str
    own_before: float
    own_after: float
    total_before: float
    total_after: float

    @property
    def own(self) -> float:
        """Change of its own share; 0.01 is one percentage point."""
        return self.own_after - self.own_before

    @property
    def total(self) -> float:
        """Change of its share with all that it called."""
        return self.total_after - self.total_before


@dataclass(frozen=True)
class CategoryChange:
    """A category's share of a process's time, idle included, in two captures, 0 to 1."""

    role: str
    category: str
    before: float
    after: float


@dataclass(frozen=True)
class CaptureDiff:
    """Two captures side by side. Shares of frames are of each capture's samples, so different lengths and rates compare."""

    before: Capture
    after: Capture

    @property
    def changes(self) -> list[Change]:
        """Every frame of either, the largest change of its own share first."""
        first, second = (capture.stacks.shares() for capture in (self.before, self.after))
        found = (
            Change(
                frame, *(share for kind in (0, 1) for share in (first.get(frame, (0.0, 0.0))[kind], second.get(frame, (0.0, 0.0))[kind]))
            )
            for frame in first.keys() | second.keys()
        )
        return sorted(found, key=lambda change: (-abs(change.own), -abs(change.total), change.frame))

    def top(self, n: int = 10) -> list[Change]:
        """The ``n`` frames whose own share changed most."""
        return self.changes[:n]

    def categories(self) -> list[CategoryChange]:
        """Processes and categories of either, the largest change first."""
        first, second = self.before.categories(), self.after.categories()
        keys = dict.fromkeys((row.role, row.category) for row in (*first, *second))
        found = (CategoryChange(*key, first.share(*key), second.share(*key)) for key in keys)
        return sorted(found, key=lambda change: -abs(change.after - change.before))

    def to_pandas(self) -> pandas.DataFrame:
        """Columns frame, own_before, own_after, own, total_before, total_after, total; shares from 0 to 1."""
        import pandas

        return pandas.DataFrame([{**vars(change), "own": change.own, "total": change.total} for change in self.changes])

    @property
    def problems(self) -> tuple[str, ...]:
        """What is doubtful in either, and why the two may not compare."""
        kinds = [(capture.how.idle, capture.how.native, capture.how.gil) for capture in (self.before, self.after)]
        unlike = ("the captures differ in idle, native or gil: shares do not compare",) if kinds[0] != kinds[1] else ()
        both = ((name, problem) for name, one in (("before", self.before), ("after", self.after)) for problem in one.problems)
        return (*unlike, *(f"{name}: {problem}" for name, problem in both))

    def draw(self) -> str:
        """A differential flame graph, as static SVG: as wide as in the second, coloured by the change."""
        return draw_difference(self.before.stacks, self.after.stacks, f"{self.title}; orange-red is more, blue is less")

    @property
    def title(self) -> str:
        """Which two."""
        return f"{self.before.path.name} → {self.after.path.name}"

    def __repr__(self) -> str:
        return f"CaptureDiff({self.title}: {'; '.join(_in_words(self.top(3)))})"

    def __str__(self) -> str:
        return "\n".join((f"{self.title}, change of own share of samples", *self.problems, *_in_words(self.top(20))))

    def _repr_html_(self) -> str:
        return difference_html(self)


def _in_words(changes: Iterable[Change]) -> list[str]:
    return [f"{change.own * 100:+.1f} pp {change.frame}" for change in changes]
