"""All kernels of this package. Nothing of Triton is imported before somebody asks."""

from __future__ import annotations

from functools import cache
from importlib import import_module

from mqlab_kernels.kernel import Kernel

FILES = (
    "reshape_cache",
    "paged_decode",
    "prefill_attention",
    "add_rms_norm",
    "rotary",
    "gated",
    "qkv_rope_cache",
    "sample",
    "advance",
    "int8_gemm",
)
"""The files, each with ``KERNELS``, in the order in which they are listed everywhere."""


@cache
def kernels() -> tuple[Kernel, ...]:
    """What each file says of its kernels.

    Raises:
        ModuleNotFoundError: Triton is not installed.
    """
    return tuple(kernel for file in FILES for kernel in import_module(f"mqlab_kernels.{file}").KERNELS)


def kernel(name: str) -> Kernel:
    """The kernel of that name.

    Raises:
        KeyError: there is none; the message names those there are.
    """
    known = {one.name: one for one in kernels()}
    if name not in known:
        raise KeyError(f"no kernel {name!r}: there are {', '.join(known)}")
    return known[name]
