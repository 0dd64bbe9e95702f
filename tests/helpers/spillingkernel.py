"""Prints what a kernel takes that cannot keep its sums in registers. No test imports it: compiling needs a process of its own."""

from __future__ import annotations

import json

import triton
import triton.language as tl
from mqlab_kernels.compile.compiler import compile_kernel
from mqlab_kernels.kernel import Case, Config, Kernel


@triton.jit
def outer_product(left, right, out, size, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    rows, columns, depth = tl.arange(0, ROWS)[:, None], tl.arange(0, COLUMNS)[None, :], tl.arange(0, 64)
    total = tl.zeros([ROWS, COLUMNS], tl.float32)
    for at in range(0, size, 64):
        a = tl.load(left + rows * size + (at + depth)[None, :])
        b = tl.load(right + columns * size + (at + depth)[:, None])
        total = tl.dot(a, b, total)
    tl.store(out + rows * COLUMNS + columns, total)


POINTERS = {"left": "*bf16", "right": "*bf16", "out": "*fp32"}
CASE = Case(name="any", types={**POINTERS, "size": "i32"}, constants={}, aligned=("left", "right", "out", "size"))
SMALL = Config(constants={"ROWS": 64, "COLUMNS": 64}, num_warps=4, num_stages=3)
TOO_LARGE = Config(constants={"ROWS": 128, "COLUMNS": 256}, num_warps=4, num_stages=3)
KERNEL = Kernel(
    name="outer_product", function=outer_product, cases=(CASE,), sweep=(SMALL, TOO_LARGE), choose=lambda constants, capability: SMALL
)

if __name__ == "__main__":
    print(json.dumps([[compile_kernel(KERNEL, CASE, config, sm).as_dict() for config in KERNEL.sweep] for sm in (80, 90, 100)]))
