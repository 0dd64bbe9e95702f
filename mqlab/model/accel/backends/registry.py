"""Backends by name. Triton is imported only where it was chosen."""

from __future__ import annotations

from collections.abc import Callable

from mqlab.model.accel.backends import gathered, pointwise, torch_sdpa
from mqlab.model.accel.backends.operations import Backend


def _torch() -> Backend:
    return _plain("torch", gathered.attend)


def _sdpa() -> Backend:
    return _plain("sdpa", torch_sdpa.attend)


def _triton() -> Backend:
    from mqlab.model.accel.backends.triton_kernels import backend

    return backend()


BACKENDS: dict[str, Callable[[], Backend]] = {"triton": _triton, "sdpa": _sdpa, "torch": _torch}


def _plain(name: str, attend: gathered.Attend) -> Backend:
    """Plain torch but for attention."""
    attention = gathered.Gathered(attend)
    return Backend(
        name=name,
        qkv_rope_cache=pointwise.qkv_rope_cache,
        decode=attention.decode,
        prefill=attention.prefill,
        add_rms_norm=pointwise.add_rms_norm,
        gated=pointwise.gated,
        advance=pointwise.advance,
    )
