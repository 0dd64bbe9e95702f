"""Kernels inline functions of other files: none may go on with what it was compiled from before one of those was changed."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from mqlab_kernels.numba_math import drop_outdated


@pytest.mark.parametrize(("written", "kept"), [(-60, True), (-10, False), (3600, True)])
def test_what_was_compiled_before_the_newest_source_is_dropped(tmp_path: Path, written: float, kept: bool) -> None:
    now = time.time()
    index = tmp_path / "__pycache__" / "old_cpu.kernel-3.py311.nbi"
    index.parent.mkdir()
    for path, stamp in ((tmp_path / "old_cpu.py", now - 100), (tmp_path / "shared_cpu.py", now + written), (index, now - 30)):
        path.touch()
        os.utime(path, (stamp, stamp))
    drop_outdated(tmp_path)
    assert index.exists() == kept
