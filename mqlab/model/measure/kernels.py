"""Kernels on the device: whether they agree with their references, how long they take, and whether another config would be faster.

``mqlab_kernels`` is imported only where a kernel is asked for, after the place has said whether Triton is to be interpreted.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from importlib import import_module
from types import ModuleType
from typing import Any, TypeVar

import torch

from mqlab.model.measure import attention_uses, point_uses
from mqlab.model.measure.place import DeviceName, Place
from mqlab.model.measure.rows import Agreement, Row, Skip, Spread, Swept, Timed, matmul
from mqlab.model.measure.timers import timer_for
from mqlab.model.measure.use import Use, tolerated

MAKERS: Mapping[str, Callable[..., Use]] = {
    "reshape_cache": attention_uses.reshape_cache,
    "paged_decode": attention_uses.paged_decode,
    "prefill_attention": attention_uses.prefill_attention,
    "add_rms_norm": point_uses.add_rms_norm,
    "rotary": point_uses.rotary,
    "gated": point_uses.gated,
    "qkv_rope_cache": point_uses.qkv_rope_cache,
    "sample": point_uses.sample,
    "advance": point_uses.advance,
    "quantise_rows": point_uses.quantise_rows,
    "int8_gemm": point_uses.int8_gemm,
}
"""By kernel, what makes a use of it of a device, a dtype and a case's sizes."""

T = TypeVar("T")

_SEED = 7


def agree(*, kind: DeviceName, kernel: str, case: str, dtype: str, sizes: Mapping[str, Any]) -> list[Row]:
    """Run it once, and its reference, on the same inputs."""
    try:
        error = _use(kind, kernel, dtype, sizes).error()
    except torch.cuda.OutOfMemoryError as failure:
        return [_no_room("correctness", kernel, case, failure)]
    drawn = "98 % of the tokens" if kernel == "sample" else tolerated(getattr(torch, dtype))
    return [Agreement(kernel, case, dtype, error if math.isfinite(error) else None, error <= 1, f"tolerated: {drawn}")]


def time_kernel(*, kind: DeviceName, kernel: str, case: str, dtype: str, sizes: Mapping[str, Any], runs: int) -> list[Row]:
    """Its time, each run with nothing of its data in the cache."""
    try:
        use = _use(kind, kernel, dtype, sizes)
        spread = timer_for(Place(kind).open()).time(use.run, runs)
    except torch.cuda.OutOfMemoryError as failure:
        return [_no_room("kernels", kernel, case, failure)]
    ceiling = matmul("int8" if kernel == "int8_gemm" else dtype)
    return [Timed(kernel, case, dtype, spread, use.moved, use.flops, ceiling)]


def sweep(*, kind: DeviceName, kernel: str, case: str, dtype: str, sizes: Mapping[str, Any], runs: int, seconds: float) -> list[Row]:
    """Every config of its sweep, the shipped one first, for ``seconds`` at most; those that are left then are told."""
    use, timer = _use(kind, kernel, dtype, sizes), timer_for(Place(kind).open())
    module = import_module(f"mqlab_kernels.{kernel}")
    shipped = _shipped(module, use)
    found = {_words(shipped): timer.time(use.run, runs)}
    failed, left = [], [config for config in module.SWEEP if config != shipped]
    until = time.monotonic() + seconds
    if kind == "cuda":
        _compile_at_once(module, use, left)
    while left and time.monotonic() < until:
        config = left.pop(0)
        with _choosing(module, lambda _, *__, config=config: config):
            outcome = _tried(lambda: timer.time(use.run, runs))
        if isinstance(outcome, Spread):
            found[_words(config)] = outcome
        else:
            failed.append(f"{_words(config)}: {outcome}")
    best = min(found, key=lambda words: found[words].median)
    own = _words(shipped)
    row = Swept(kernel, case, own, found[own], best, found[best], len(found), tuple(failed))
    what = f"{kernel}, {case}: {len(left)} of {len(module.SWEEP)} configs"
    untried = [Skip("sweep", what, f"its {seconds:g} s were over")] if left else []
    return [row, *untried]


def _use(kind: DeviceName, kernel: str, dtype: str, sizes: Mapping[str, Any]) -> Use:
    device = Place(kind).open()
    torch.manual_seed(_SEED)
    return MAKERS[kernel](device, getattr(torch, dtype), **sizes)


def _shipped(module: ModuleType, use: Use) -> Any:
    """The config that a launch takes of itself."""
    taken = []
    with _choosing(module, lambda choose, *args: taken.append(choose(*args)) or taken[-1]):
        use.run()
    return taken[0]


@contextmanager
def _choosing(module: ModuleType, choose: Callable[..., Any]) -> Iterator[None]:
    """Let ``choose`` say which config a kernel is launched with; it gets what the kernel's file would have asked, and its arguments."""
    own = module.choose
    module.choose = lambda *args: choose(own, *args)  # pyright: ignore[reportAttributeAccessIssue]
    try:
        yield
    finally:
        module.choose = own  # pyright: ignore[reportAttributeAccessIssue]


def _compile_at_once(module: ModuleType, use: Use, configs: Sequence[Any]) -> None:
    """On all processors, for one after the other takes longer than to time them all; what cannot be compiled says so when it is tried."""
    from triton import AsyncCompileMode

    with ThreadPoolExecutor(os.cpu_count()) as pool, AsyncCompileMode(pool, ignore_errors=True), ExitStack() as stack:
        for kernel in module.KERNELS:
            stack.enter_context(_not_launched(kernel.function))
        for config in configs:
            with _choosing(module, lambda _, *__, config=config: config):
                _tried(use.run)


@contextmanager
def _not_launched(function: Any) -> Iterator[None]:
    """Let calls of a Triton kernel only compile it."""
    run = function.run
    function.run = partial(_compiled, run)
    try:
        yield
    finally:
        del function.run


def _compiled(run: Callable[..., object], *args: Any, warmup: bool, **kwargs: Any) -> None:
    del warmup
    run(*args, warmup=True, **kwargs)


def _tried(call: Callable[[], T]) -> T | str:
    """What it gives, or why it gives nothing: a config may want more than this device has, of shared memory for one."""
    try:
        return call()
    except torch.AcceleratorError:
        raise  # nothing can be launched in this process any more
    except Exception as error:
        return f"{type(error).__name__}: {error}".splitlines()[0]


def _words(config: Any) -> str:
    constants = ", ".join(f"{name} {value}" for name, value in config.constants.items())
    return f"{constants}, {config.num_warps} warps, {config.num_stages} stages"


def _no_room(part: str, kernel: str, case: str, error: Exception) -> Skip:
    return Skip(part, f"{kernel}, {case}", f"the device has no room for it: {error}".splitlines()[0].split(". ")[0])
