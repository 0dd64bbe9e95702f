"""Templates in, static HTML and SVG out. Colours come from Jupyter's theme, so light and dark both read well."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

import jinja2

COLOURS = {
    "main": "var(--jp-brand-color1, #0072B2)",
    "blue": "#0072B2",
    "orange": "#E69F00",
    "green": "#009E73",
    "red": "#D55E00",
    "pink": "#CC79A7",
}
"""The theme's own blue, and the palette of Okabe and Ito, told apart by the colour-blind as well. Never the only sign: each has a label."""


@cache
def _templates() -> jinja2.Environment:
    environment = jinja2.Environment(loader=jinja2.PackageLoader("mqlab.lab"), autoescape=True, undefined=jinja2.StrictUndefined)
    environment.globals["colour"] = COLOURS
    return environment


def render(template: str, facts: Mapping[str, Any]) -> str:
    """A template of this package with facts filled in, escaped."""
    return _templates().get_template(template).render(facts)
