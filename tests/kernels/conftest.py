"""Kernels run in Triton's interpreter here, with its bfloat16 dots mended, and touch nothing but the tensors that they are given."""

from __future__ import annotations

import pytest
from bounds import watch
from mqlab_kernels import interpreter

interpreter.patch()


@pytest.fixture(autouse=True)
def within_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Any access of any launch outside of its tensors fails the test."""
    watch(monkeypatch)
