"""CPU by category: where the processes of a capture spent their time, as rows, as a table and as bars.

The operating system's CPU time of a thread says how much it ran, the samples say what it did: each thread's categories are scaled to
its CPU time. Where that is unknown the samples stand alone.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING

from mqlab.record.categories import COLOURS, IDLE, MEANING, OTHER, QUEUED, is_wait, of_stack
from mqlab.record.flame import Stacks
from mqlab.record.part import Part

if TYPE_CHECKING:
    import pandas

_LABEL_W, _BAR_W, _ROW_H = 150, 760, 26
_CHARACTER = 6.6
_ORDER = tuple(COLOURS)


@dataclass(frozen=True)
class Row:
    """What one process spent on one category.

    Attributes:
        cpus: cores used by it, 1.0 being one core all the time; of "no core", cores that it could have used.
        share: of the process's time, idle included; a process's shares sum to 1.
        samples: seen in that category.
    """

    role: str
    category: str
    cpus: float
    share: float
    samples: int


class Categories:
    """CPU by process and category."""

    def __init__(self, parts: Iterable[Part], *, idle: bool = False, gil: bool = False) -> None:
        self.rows = [row for part in parts for row in _rows(part, idle, gil)]

    def share(self, role: str, category: str) -> float:
        """Of the process's time; 0.0 for what was not seen."""
        return next((row.share for row in self.rows if (row.role, row.category) == (role, category)), 0.0)

    def __iter__(self) -> Iterator[Row]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def to_pandas(self) -> pandas.DataFrame:
        """Columns role, category, cpus, share, samples."""
        import pandas

        return pandas.DataFrame([vars(row) for row in self.rows], columns=["role", "category", "cpus", "share", "samples"])

    def by_role(self) -> dict[str, list[Row]]:
        """Rows of each process."""
        return {role: [row for row in self.rows if row.role == role] for role in dict.fromkeys(row.role for row in self.rows)}

    def draw(self) -> str:
        """One bar a process, as static SVG; text in the colour of what is around it."""
        bars = "".join(_bar(role, rows, index) for index, (role, rows) in enumerate(self.by_role().items()))
        width, height = _LABEL_W + _BAR_W + 4, _ROW_H * len(self.by_role()) + 4
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="100%" style="max-width:{width}px" role="img" '
            f'font-family="monospace" font-size="11" fill="currentColor"><title>CPU by category</title>{bars}</svg>'
        )

    def __str__(self) -> str:
        return "\n".join(f"{role:<12} " + ", ".join(_words(rows)) for role, rows in self.by_role().items())

    def __repr__(self) -> str:
        return f"Categories({len(self.by_role())} processes)\n{self}"

    def _repr_html_(self) -> str:
        used = [name for name in _ORDER if any(row.category == name for row in self.rows)]
        head = "".join(f"<th>{escape(role)}</th>" for role in self.by_role())
        body = "".join(f"<tr>{_swatch(name)}{self._cells(name)}{_meaning(name)}</tr>" for name in used)
        return (
            f'{self.draw()}<details><summary>CPU by category</summary><table><thead><tr><th style="text-align:left">category</th>'
            f'{head}<th style="text-align:left">what it is</th></tr></thead><tbody>{body}</tbody></table></details>'
        )

    def _cells(self, category: str) -> str:
        return "".join(f'<td style="text-align:right">{self.share(role, category):.1%}</td>' for role in self.by_role())


def _rows(part: Part, idle: bool, gil: bool) -> list[Row]:
    samples: Counter[str] = Counter()
    cpus: defaultdict[str, float] = defaultdict(float, {} if gil else _unseen(part))
    for name, stacks in part.threads().items():
        measured = None if gil or not part.seconds else part.cpu_s.get(name)
        ran, waited = _split(stacks, idle)
        samples.update(ran + waited)
        for category, cores in _scaled(ran, waited, part.ticks, None if measured is None else measured / part.seconds).items():
            cpus[category] += cores
    if part.seconds and not gil:
        cpus[QUEUED] = part.queued_s / part.seconds
    used = sum(cpus.values())
    cpus[IDLE] = max(0.0, 1.0 - used)
    whole = max(1.0, used)
    return [Row(part.role, name, cpus[name], cpus[name] / whole, samples[name]) for name in _ORDER if name == IDLE or cpus.get(name)]


def _split(stacks: Stacks, idle: bool) -> tuple[Counter[str], Counter[str]]:
    """Samples by category: those that ran, and those that may have waited. Without ``idle`` the sampler left waiting threads out."""
    ran: Counter[str] = Counter()
    waited: Counter[str] = Counter()
    for stack, count in stacks.counts.items():
        (waited if idle and is_wait(stack[-1]) else ran)[of_stack(stack)] += count
    return ran, waited


def _scaled(ran: Counter[str], waited: Counter[str], ticks: int, cpus: float | None) -> dict[str, float]:
    """Cores by category of one thread. What may have waited counts as far as the measured CPU time is not used up by what ran."""
    if cpus is None:
        return {name: count / max(ticks, 1) for name, count in ran.items()}
    left = max(0.0, cpus * ticks - ran.total())
    awake = min(1.0, left / waited.total()) if waited else 0.0
    weights = {name: ran[name] + awake * waited[name] for name in ran | waited}
    total = sum(weights.values())
    return {name: weight / total * cpus for name, weight in weights.items()} if total else {}


def _unseen(part: Part) -> dict[str, float]:
    """Cores of threads without Python stacks: libzmq's own, torch's pool."""
    seen = part.threads()
    pool = "torch" if any(of_stack(stack) == "torch" for stack in part.stacks.counts) else OTHER
    cores: defaultdict[str, float] = defaultdict(float)
    for name, seconds in part.cpu_s.items():
        if name not in seen and part.seconds:
            cores["zmq" if name.startswith("ZMQbg") else pool] += seconds / part.seconds
    return cores


def _words(rows: Iterable[Row]) -> list[str]:
    return [f"{row.category} {row.share:.0%}" for row in sorted(rows, key=lambda row: -row.share) if row.share >= 0.005]


def _bar(role: str, rows: Iterable[Row], index: int) -> str:
    y, x = index * _ROW_H + 2, float(_LABEL_W)
    pieces = [f'<text x="0" y="{y + 15}">{escape(role[:20])}</text>']
    for row in rows:
        width = row.share * _BAR_W
        pieces.append(_piece(row, x, y, width))
        x += width
    return "".join(pieces)


def _piece(row: Row, x: float, y: float, width: float) -> str:
    words = next((text for text in (f"{row.category} {row.share:.0%}", row.category) if len(text) * _CHARACTER + 4 <= width), "")
    tip = f"{row.role}: {row.category} {row.share:.1%} of its time, {row.cpus:.2f} CPUs; {MEANING[row.category]}"
    place = f'x="{x:.1f}" y="{y}" width="{width:.1f}" height="{_ROW_H - 4}"'
    rect = f'<rect {place} fill="{COLOURS[row.category]}" stroke="#777" stroke-width="0.5"/>'
    text = f'<text x="{x + 3:.1f}" y="{y + 15}" fill="#1a1a1a">{escape(words)}</text>' if words else ""
    return f"<g><title>{escape(tip)}</title>{rect}{text}</g>"


def _swatch(category: str) -> str:
    box = f'<span style="display:inline-block;width:0.8em;height:0.8em;border:1px solid #777;background:{COLOURS[category]}"></span>'
    return f'<td style="text-align:left">{box} {escape(category)}</td>'


def _meaning(category: str) -> str:
    return f'<td style="text-align:left">{escape(MEANING[category])}</td>'
