"""Prints what each launch of the device bench would compile on a GPU. No test imports it: it needs a process without ``TRITON_INTERPRET``.

Tensors have shapes and no memory, and the driver only says which GPU it would be: launchers and Triton do all that comes before compiling.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import torch
import triton
from mqlab_kernels import catalogue
from triton.backends.compiler import GPUTarget
from triton.runtime.jit import JITFunction

from mqlab.bench.device.jobs import correctness_cases, timed_cases, wanted_cases
from mqlab.model.measure.kernels import MAKERS


class PretendedDriver:
    """Of an H100 that is not there."""

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", 90, 32)

    def get_current_device(self) -> int:
        return 0


def recording(kernel: Any, *args: Any, grid: Any, warmup: bool, **options: Any) -> None:
    """In place of a launch: the types of its arguments, None for its constants, and these."""
    *_, binder = kernel.device_caches[0]
    bound, specialization, _ = binder(*args, debug=False, **options)
    types = dict(zip(kernel.arg_names, (kind for kind, _ in specialization), strict=True))
    constants = {name: bound[name] for name, kind in types.items() if kind == "constexpr"}
    known = {id(one.function): one.name for one in catalogue.kernels()}
    print(json.dumps({"kernel": known[id(kernel)], "types": {n: t for n, t in types.items() if t != "constexpr"}, "constants": constants}))


if __name__ == "__main__":
    triton.runtime.driver.set_active(PretendedDriver())  # pyright: ignore[reportArgumentType]
    JITFunction.run = recording  # pyright: ignore[reportAttributeAccessIssue]
    for case in [*wanted_cases(small=False), *correctness_cases(small=False), *timed_cases(small=False)]:
        print(f"{case.kernel}, {case.case}, {case.dtype}", file=sys.stderr)
        MAKERS[case.kernel](torch.device("meta"), getattr(torch, case.dtype), **case.sizes).run()
