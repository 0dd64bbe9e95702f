"""Scalar helpers that numba inlines into the CPU kernels: fast exp, and 16-bit storage read and written as float32.

Every kernel imports this module before numba looks into its cache, which is cleared here of what other versions of the files left.
"""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from numba import njit, types
from numba.extending import overload


def drop_outdated(folder: Path) -> None:
    """Remove the index of every kernel that was compiled before the newest of its folder's sources for the CPU was written.

    numba's cache of a kernel watches the kernel's own file only, and so would go on with what was inlined from another one before that
    was changed. Sources from the future say nothing.
    """
    newest = max(path.stat().st_mtime for pattern in ("*_cpu.py", "numba_*.py") for path in folder.glob(pattern))
    if newest <= time.time():
        for index in folder.glob("__pycache__/*.nbi"):
            with suppress(OSError):  # another process may have done it, or this one may not
                if index.stat().st_mtime < newest:
                    index.unlink()


drop_outdated(Path(__file__).parent)

# NaN and infinity must survive (the sampler reports them), so the two flags that assume their absence stay off.
FASTMATH = {"reassoc", "contract", "nsz", "arcp", "afn"}


@njit(fastmath=FASTMATH, inline="always")
def exp_nonpositive(x: Any) -> Any:
    """e**x for x <= 0 in float32, relative error below 3e-7; a polynomial, because LLVM does not vectorise a call of expf."""
    x = max(x, np.float32(-87.0))
    n = np.floor(x * np.float32(1.4426950408889634) + np.float32(0.5))
    # ln 2 in two parts keeps the reduced argument exact.
    f = (x - n * np.float32(0.693359375)) + n * np.float32(2.12194440e-4)
    p = np.float32(1.9875691500e-4)
    p = p * f + np.float32(1.3981999507e-3)
    p = p * f + np.float32(8.3334519073e-3)
    p = p * f + np.float32(4.1665795894e-2)
    p = p * f + np.float32(1.6666665459e-1)
    p = p * f + np.float32(5.0000001201e-1)
    p = p * f * f + f + np.float32(1.0)
    return p * np.int32((np.int32(n) + np.int32(127)) << np.int32(23)).view(np.float32)


def widen(x: Any) -> Any:
    """A stored value as float32: float32 itself, or bfloat16 held as uint16."""
    raise NotImplementedError(f"widen is for compiled code only, got {x!r}")


@overload(widen, inline="always")
def _widen(x: Any) -> Any:
    return _same if x == types.float32 else _from_bfloat16


def _same(x: Any) -> Any:
    return x


def _from_bfloat16(x: Any) -> Any:
    return np.int32(np.int32(x) << np.int32(16)).view(np.float32)


def narrow(x: Any, like: Any) -> Any:
    """A float32 as ``like`` is stored: itself, or rounded to the nearest bfloat16 (ties to even) as uint16."""
    raise NotImplementedError(f"narrow is for compiled code only, got {x!r}, {like!r}")


@overload(narrow, inline="always")
def _narrow(x: Any, like: Any) -> Any:
    return _same_as if like == types.float32 else _to_bfloat16


def _same_as(x: Any, like: Any) -> Any:
    return x


def _to_bfloat16(x: Any, like: Any) -> Any:
    bits = np.int64(np.float32(x).view(np.int32)) & 0xFFFFFFFF
    return np.uint16((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16)
