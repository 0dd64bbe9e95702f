"""Static HTML of notebook objects."""

from __future__ import annotations

from mqlab.lab.picture import draw
from mqlab.lab.templating import render
from mqlab.types import Shape

_OFF = "var(--jp-content-font-color3, #888)"
LIGHTS = {"ready": "var(--jp-success-color1, #388e3c)", **dict.fromkeys(("unloaded", "asleep", "loading", "stopped"), _OFF)}
"""The colour of a state's dot; every other state is trouble."""

TROUBLE = "var(--jp-error-color1, #d32f2f)"


def session_html(name: str, state: str, detail: str, shape: Shape, facts: list[tuple[str, str]]) -> str:
    """The card of a session."""
    light = LIGHTS.get(state, TROUBLE)
    return render(
        "session.html.j2", {"name": name, "state": state, "detail": detail, "light": light, "picture": draw(shape), "facts": facts}
    )
