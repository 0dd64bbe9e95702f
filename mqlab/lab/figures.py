"""Numbers as people read them, short enough for a label."""

from __future__ import annotations

_STEPS = ((1e9, "G"), (1e6, "M"), (1e3, "k"))


def number(value: float) -> str:
    """Three digits and a prefix: ``812``, ``1.23 k``, ``4.50``; a small whole number as it is."""
    if isinstance(value, int) and value < 1000:
        return str(value)
    for size, prefix in _STEPS:
        if value >= 0.9995 * size:
            return f"{_digits(value / size)} {prefix}"
    return _digits(value)


def data(value: float) -> str:
    """An amount of bytes: ``812 B``, ``1.23 MB``."""
    text = number(value)
    return f"{text}B" if text[-1].isalpha() else f"{text} B"


def duration(seconds: float | None) -> str:
    """``1.23 s``, ``45.6 ms``, ``789 µs``; a dash for None."""
    if seconds is None:
        return "–"
    for size, unit in ((1.0, "s"), (1e-3, "ms")):
        if seconds >= 0.9995 * size:
            return f"{_digits(seconds / size)} {unit}"
    return f"{_digits(seconds * 1e6)} µs"


def percent(share: float) -> str:
    """``93 %``; below ten with one digit more."""
    return f"{100 * share:.1f} %" if 0 < share < 0.0995 else f"{100 * share:.0f} %"


def _digits(value: float) -> str:
    if value == 0:
        return "0"
    return f"{value:.0f}" if value >= 99.95 else f"{value:.1f}" if value >= 9.995 else f"{value:.2f}"
