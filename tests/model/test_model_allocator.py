"""Memory that a step frees serves the next one, without a visit to the kernel."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

STEPS = """
import sys
import psutil
from mqlab.model.allocator import keep_freed_memory

if "keep" in sys.argv:
    keep_freed_memory()
before = psutil.Process().memory_info().rss
activations = [bytearray(b"x") * (4 << 20) for _ in range(48)]
del activations
print(psutil.Process().memory_info().rss - before)
"""
STEP_BYTES = 48 * (4 << 20)


def still_held(*arguments: str) -> int:
    """Bytes, once a step of 192 MiB in pieces of 4 has freed them; in a process of its own."""
    done = subprocess.run([sys.executable, "-c", STEPS, *arguments], capture_output=True, text=True, check=True)
    return int(done.stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the C library cannot be told")
def test_what_a_step_frees_stays_for_the_next_one() -> None:
    assert still_held() < 0.2 * STEP_BYTES
    assert 0.8 * STEP_BYTES < still_held("keep") < 1.2 * STEP_BYTES
