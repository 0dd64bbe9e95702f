"""The modules that make up the contract, imported."""

from __future__ import annotations

import importlib

from mqlab.contract import NAMES

THEMES = tuple(importlib.import_module(f"mqlab.contract.{name}") for name in NAMES)
"""In the order in which an engine meets them."""
