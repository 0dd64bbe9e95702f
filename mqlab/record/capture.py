"""A capture: stacks sampled from one or more processes, kept in a folder that needs none of them to be read again.

meta.json                  what was sampled, when, how long, by what, and what went wrong
ROLE-PID.stacks.txt        folded stacks of one process, the thread outermost: for flamegraph.pl, speedscope, ``Capture.load``
capture.speedscope.json    all of it for https://www.speedscope.app, a profile for each process and thread
flame.svg                  the flame graph
"""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec

from mqlab.errors import ProfileError
from mqlab.record import speedscope
from mqlab.record.difference import CaptureDiff
from mqlab.record.flame import Share, Stacks, draw
from mqlab.record.pages import capture_html
from mqlab.record.part import Part
from mqlab.record.shares import Categories

META = "meta.json"
SPEEDSCOPE = "capture.speedscope.json"
FLAME = "flame.svg"
_THREAD = re.compile(r"^thread \(\w+\)(: )?", re.MULTILINE)


@dataclass(frozen=True)
class How:
    """How a capture was taken: py-spy's options.

    Attributes:
        seconds: asked for; 0 where a loaded file does not say.
        rate: samples a second.
        idle: threads that wait are in it as well.
        native: C frames are in it as well.
        gil: only threads that hold the interpreter's lock are in it.
        until_stopped: to be ended by whoever began it; ``seconds`` is then only a bound.
    """

    seconds: int = 0
    rate: float = 100
    idle: bool = False
    native: bool = False
    gil: bool = False
    until_stopped: bool = False


@dataclass(frozen=True)
class Capture:
    """Stacks sampled from one or more processes.

    Attributes:
        parts: one for each process.
        how: the options it was taken with.
        path: the folder, or the file that it was loaded from.
        notes: sentences on what could not be sampled at all.
        made: when, as ISO 8601 text with its zone; empty where unknown.
    """

    parts: tuple[Part, ...]
    how: How
    path: Path
    notes: tuple[str, ...] = ()
    made: str = ""

    @staticmethod
    def load(path: str | Path, *, idle: bool = False) -> Capture:
        """Open a saved capture: a folder of ours, a speedscope JSON file, or folded stacks (py-spy's ``--format raw``, flamegraph.pl).

        Args:
            idle: whether a file that does not say holds waiting threads as well (``py-spy record --idle``).

        Raises:
            ProfileError: nothing there, or none of these.
        """
        path = Path(path)
        try:
            if path.is_dir():
                return _load_folder(path)
            return _load_speedscope(path, idle) if path.suffix == ".json" else _load_folded(path, idle)
        except FileNotFoundError as error:
            raise ProfileError(f"no capture at {path}: {Path(error.filename).name} is missing") from error
        except (OSError, ValueError, RecursionError, msgspec.ValidationError) as error:
            raise ProfileError(
                f"{path} is no capture: {error}; give a folder of mqlab's, a speedscope JSON file or folded stacks"
            ) from error

    def save(self, folder: Path) -> Capture:
        """Write it into ``folder``, made where it is missing; returns the capture that lies there."""
        folder.mkdir(parents=True, exist_ok=True)
        for part in self.parts:
            part.stacks.save(folder / _file_of(part))
        speedscope.write(folder / SPEEDSCOPE, self._profiles(), rate=self.how.rate, name=folder.name)
        (folder / FLAME).write_text(self.draw(), encoding="utf-8")
        meta = {"how": asdict(self.how), "made": self.made, "notes": self.notes, "parts": [_as_record(part) for part in self.parts]}
        (folder / META).write_text(json.dumps(meta, indent=2) + "\n", encoding="utf-8")
        return replace(self, path=folder)

    @cached_property
    def stacks(self) -> Stacks:
        """All processes in one; the outermost frames are process and thread."""
        return Stacks.merge({part.role: part.stacks for part in self.parts})

    @property
    def svg(self) -> Path:
        """The flame graph of a saved capture."""
        return self.path / FLAME

    @property
    def speedscope(self) -> Path:
        """The speedscope file of a saved capture."""
        return self.path / SPEEDSCOPE

    @property
    def problems(self) -> tuple[str, ...]:
        """Everything that is missing or doubtful, a sentence each."""
        return (*self.notes, *(f"{part.role}: {note}" for part in self.parts for note in part.notes))

    def part(self, role: str) -> Part:
        """What was sampled of one process.

        Raises:
            ProfileError: it is not in the capture.
        """
        for part in self.parts:
            if part.role == role:
                return part
        raise ProfileError(f"{role!r} is not in this capture; it has {', '.join(part.role for part in self.parts)}")

    def top(self, n: int = 10) -> list[Share]:
        """The ``n`` functions with the most samples of their own."""
        return self.stacks.top(n)

    def categories(self) -> Categories:
        """CPU by process and category, idle time included."""
        return Categories(self.parts, idle=self.how.idle, gil=self.how.gil)

    def diff(self, after: Capture) -> CaptureDiff:
        """What changed from this capture to ``after``."""
        return CaptureDiff(self, after)

    def draw(self) -> str:
        """The flame graph, as static SVG."""
        return draw(self.stacks, self.title)

    @property
    def title(self) -> str:
        """What the flame graph shows, in a line."""
        what = "holding the GIL" if self.how.gil else "of all threads" if self.how.idle else "of running threads"
        seconds = max((part.seconds for part in self.parts), default=0.0) or self.how.seconds
        span = f" in {seconds:.1f} s" if seconds else ""
        return f"{self.stacks.total} samples{span} {what}"

    def __repr__(self) -> str:
        errors = sum(part.errors for part in self.parts)
        doubts = f", {errors} samples failed" if errors else ""
        return f"Capture({', '.join(part.role for part in self.parts)}: {self.title}{doubts}, {self.path.name})"

    def __str__(self) -> str:
        lines = [f"{share.own:7.1%} {share.total:7.1%}  {share.frame}" for share in self.top()]
        return "\n".join((repr(self), *self.problems, str(self.categories()), "    own   total  function", *lines))

    def _repr_html_(self) -> str:
        return capture_html(self)

    def _profiles(self) -> dict[str, Stacks]:
        return {f"{part.role} {part.pid} {thread}": stacks for part in self.parts for thread, stacks in part.threads().items()}


def parse_raw(text: str) -> Stacks:
    """What ``py-spy record --format raw`` writes; a thread's frame is its name, without the number that no other run has.

    Raises:
        ValueError: a line is no stack with a count.
    """
    return Stacks.parse(_THREAD.sub(lambda found: "" if found[1] else "thread", text))


def _file_of(part: Part) -> str:
    return f"{re.sub(r'[^A-Za-z0-9_.+-]', '_', part.role)}-{part.pid}.stacks.txt"


def _as_record(part: Part) -> dict[str, Any]:
    return {**{name: value for name, value in vars(part).items() if name != "stacks"}, "file": _file_of(part)}


def _load_folder(folder: Path) -> Capture:
    meta = json.loads((folder / META).read_text(encoding="utf-8"))
    try:
        parts = [_load_part(folder, record) for record in meta["parts"]]
        return Capture(tuple(parts), msgspec.convert(meta["how"], How), folder, tuple(meta["notes"]), meta["made"])
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"its {META} is not as it was written: {type(error).__name__}: {error}") from error


def _load_part(folder: Path, record: dict[str, Any]) -> Part:
    stacks = Stacks.load(folder / Path(record.pop("file")).name)
    return Part(**{**record, "stacks": stacks, "notes": tuple(record["notes"])})


def _load_speedscope(path: Path, idle: bool) -> Capture:
    profiles, rate = speedscope.read(path)
    parts = [_foreign(name, Stacks.merge({name: stacks})) for name, stacks in profiles.items()]
    return Capture(tuple(parts), How(rate=rate, idle=idle), path)


def _load_folded(path: Path, idle: bool) -> Capture:
    stacks = parse_raw(path.read_text(encoding="utf-8"))
    return Capture((_foreign(path.stem, stacks),), How(idle=idle), path)


def _foreign(role: str, stacks: Stacks) -> Part:
    """A part of a file that says nothing but stacks: its ticks are those of its busiest thread."""
    part = Part(role, stacks, 0)
    return replace(part, ticks=max((thread.total for thread in part.threads().values()), default=0))
