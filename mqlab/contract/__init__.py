"""The contract of EngineClient, as checks that any topology can be put through: this package's own and yours."""

from __future__ import annotations

NAMES = ("start", "requests", "push", "abort", "calls", "embed", "model_lifecycle", "death", "close", "exit")
"""The modules that hold checks, in the order in which an engine meets them."""

MODULES = tuple(f"{__name__}.{name}" for name in ("rig", *NAMES))
"""Those whose assertions are worth pytest's explanations; to be told to it before they are imported."""
