"""Stacks as a speedscope file, and back: https://www.speedscope.app/file-format-schema.json, sampled and evented profiles.

Viewers: speedscope.app (which works offline) and Perfetto. Ours has one sampled profile per process and thread.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from mqlab.record.flame import Stack, Stacks

SCHEMA = "https://www.speedscope.app/file-format-schema.json"
_SECONDS = {"seconds": 1.0, "milliseconds": 1e-3, "microseconds": 1e-6, "nanoseconds": 1e-9}
_TICKS_S = 1_000_000


def write(path: Path, profiles: Mapping[str, Stacks], *, rate: float, name: str) -> None:
    """Save stacks by the name of their profile; each sample weighs ``1 / rate`` seconds."""
    frames: dict[str, int] = {}
    sampled = [_sampled(title, stacks, rate, frames) for title, stacks in profiles.items()]
    document = {
        "$schema": SCHEMA,
        "shared": {"frames": [_frame(frame) for frame in frames]},
        "profiles": sampled,
        "name": name,
        "activeProfileIndex": 0,
        "exporter": "mqlab",
    }
    path.write_text(json.dumps(document, separators=(",", ":")), encoding="utf-8")


def _sampled(title: str, stacks: Stacks, rate: float, frames: dict[str, int]) -> dict[str, Any]:
    weights = [count / rate for count in stacks.counts.values()]
    return {
        "type": "sampled",
        "name": title,
        "unit": "seconds",
        "startValue": 0,
        "endValue": sum(weights),
        "samples": [[frames.setdefault(frame, len(frames)) for frame in stack] for stack in stacks.counts],
        "weights": weights,
    }


def _frame(frame: str) -> dict[str, str]:
    function, found, file = frame.rpartition(" (")
    return {"name": function, "file": file.removesuffix(")")} if found else {"name": frame}


def read(path: Path) -> tuple[dict[str, Stacks], float]:
    """Stacks by profile, and the samples a second that they stand for.

    Profiles whose samples weigh the same, or whole multiples, keep their samples; others, and evented ones, are counted in microseconds.

    Raises:
        ValueError: it is no speedscope file.
    """
    document = json.loads(path.read_text(encoding="utf-8"))
    try:
        frames = [_name(frame) for frame in document["shared"]["frames"]]
        weighed = {title: _weights(profile, frames) for title, profile in _titled(document["profiles"])}
        rate = _rate({weight for pairs in weighed.values() for _, weight in pairs})
        return {title: _summed(pairs, rate) for title, pairs in weighed.items()}, rate
    except (KeyError, TypeError, IndexError, AttributeError, ArithmeticError, ValueError) as error:
        raise ValueError(f"it is no speedscope file: {type(error).__name__}: {error}") from error


def _titled(profiles: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Profiles by their names, numbered where a name comes again."""
    seen: Counter[str] = Counter()
    for profile in profiles:
        title = str(profile["name"])
        seen[title] += 1
        yield (title if seen[title] == 1 else f"{title} ({seen[title]})"), profile


def _name(frame: Mapping[str, Any]) -> str:
    name, file = str(frame["name"]).replace(";", ":"), frame.get("file")
    return f"{name} ({str(file).replace(';', ':')})" if file else name


def _weights(profile: Mapping[str, Any], frames: Sequence[str]) -> list[tuple[Stack, float]]:
    """Stacks with their seconds; of a profile that does not measure time, with its units."""
    scale = _SECONDS.get(profile["unit"], 1.0)
    pairs = _of_events(profile) if profile["type"] == "evented" else zip(profile["samples"], profile["weights"], strict=True)
    return [(tuple(frames[index] for index in stack), weight * scale) for stack, weight in pairs if stack and weight > 0]


def _summed(pairs: Iterable[tuple[Stack, float]], rate: float) -> Stacks:
    seconds: defaultdict[Stack, float] = defaultdict(float)
    for stack, weight in pairs:
        seconds[stack] += weight
    counts = {stack: round(weight * rate) for stack, weight in seconds.items()}
    return Stacks({stack: count for stack, count in counts.items() if count})


def _of_events(profile: Mapping[str, Any]) -> Iterator[tuple[tuple[int, ...], float]]:
    open_frames: list[int] = []
    last = profile["startValue"]
    for event in profile["events"]:
        yield tuple(open_frames), event["at"] - last
        last = event["at"]
        if event["type"] == "O":
            open_frames.append(event["frame"])
        else:
            open_frames.pop()
    yield tuple(open_frames), profile["endValue"] - last


def _rate(weights: Collection[float]) -> float:
    """Samples a second: the fewest, up to ten for the smallest weight, of which all weights are multiples."""
    smallest = min(weights, default=0.01)
    units = (smallest / parts for parts in range(1, 11))
    return next((1 / unit for unit in units if all(abs(w / unit - round(w / unit)) < 1e-3 for w in weights)), float(_TICKS_S))
