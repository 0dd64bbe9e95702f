"""Names of engines without a model: echo, echo:<model>."""

from __future__ import annotations

ECHO = "echo"
"""The model name that stands for no model at all: prompts come back, and the layout's own cost is measured. ``echo:MODEL`` has the
tokenizer of a model as well, so that what it says can be turned into text."""


def is_echo(model: str) -> bool:
    """Whether a model's name stands for a core without a model."""
    return model.partition(":")[0] == ECHO


def tokenizer_of(model: str, default: str) -> str:
    """The model whose tokenizer an echo has where it must speak text; ``default`` for one that names none."""
    return model.partition(":")[2] or default
