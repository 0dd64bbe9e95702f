"""How rows are quantised to 8 bits, whatever computes it: x is about integers * scale, the scale the row's largest magnitude / LIMIT."""

from __future__ import annotations

LIMIT = 127
"""Largest magnitude of an integer: symmetric, so that a row and its negative are alike."""

SMALLEST_SCALE = 1e-30
"""Scale of a row that has nothing above it: its integers become zeros, and no reciprocal overflows."""
