"""The modules that make up the contract, imported."""

from __future__ import annotations

import importlib

from mqlab.contract import THEMES as _NAMES

THEMES = tuple(importlib.import_module(f"mqlab.contract.{name}") for name in _NAMES)
"""In the order in which an engine meets them."""
