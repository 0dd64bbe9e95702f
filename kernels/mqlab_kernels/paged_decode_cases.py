"""What paged decode is compiled for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import triton

from mqlab_kernels.kernel import Case, Config

_STRIDES = ("q_row", "q_head", "out_row", "out_head", "block_stride", "head_stride", "token_stride")
_ALIGNED = ("q", "keys", "values", "out", "parts", "logs", *_STRIDES)


def _case(name: str, dtype: str, size: int, block: int = 16, *, split: bool = True, capped: bool = False, rows: int = 16) -> Case:
    data = dict.fromkeys(("q", "keys", "values", "out"), f"*{dtype}")
    integers = dict.fromkeys(("table_stride", *_STRIDES, "group", "window", "splits", "least"), "i32")
    floats = {"parts": "*fp32", "logs": "*fp32", "scale": "fp32", "softcap": "fp32"}
    types = {**data, "tables": "*i32", "contexts": "*i32", **integers, **floats}
    constants = {
        "SIZE": size,
        "PADDED": triton.next_power_of_2(size),
        "BLOCK": block,
        "CAPPED": capped,
        "FLOAT32": dtype == "fp32",
        "SPLIT": split,
        "ROWS": rows,
    }
    return Case(name=name, types=types, constants=constants, aligned=_ALIGNED)


CASES = (
    _case("head 128 bf16 (Llama 8B, 70B; Qwen; Mistral)", "bf16", 128),
    _case("head 128 bf16, one split", "bf16", 128, split=False),
    _case("head 128 fp16", "fp16", 128),
    _case("head 128 fp16, one split", "fp16", 128, split=False),
    _case("head 128 fp32", "fp32", 128),
    _case("head 128 bf16, 32 rows (more than 16 query heads for each KV head)", "bf16", 128, rows=32),
    _case("head 128 bf16, soft cap (Gemma 2 27B)", "bf16", 128, capped=True),
    *(_case(f"head 128 bf16, blocks of {block}", "bf16", 128, block) for block in (1, 8, 32, 48)),
    _case("head 64 bf16 (SmolLM2 135M, Llama 1B)", "bf16", 64),
    _case("head 64 bf16, one split", "bf16", 64, split=False),
    _case("head 64 fp16", "fp16", 64),
    _case("head 64 fp32", "fp32", 64),
    _case("head 32 bf16", "bf16", 32),
    _case("head 80 bf16 (Phi 2)", "bf16", 80),
    _case("head 96 bf16 (Phi 3 mini)", "bf16", 96),
    _case("head 112 bf16", "bf16", 112),
    _case("head 192 bf16", "bf16", 192),
    _case("head 256 bf16 (Gemma)", "bf16", 256),
    _case("head 256 bf16, soft cap (Gemma 2 9B)", "bf16", 256, capped=True),
    _case("head 256 fp32", "fp32", 256),
)


def combine_cases(choose: Callable[[Mapping[str, Any], int], Config]) -> tuple[Case, ...]:
    """What the second kernel is compiled for, given what chooses the tile of the first."""
    sizes = [("bf16", size) for size in (128, 32, 64, 80, 96, 112, 192, 256)]
    return tuple(_combine_case(dtype, size, choose) for dtype, size in (*sizes, ("fp16", 128), ("fp32", 128)))


def _combine_case(dtype: str, size: int, choose: Callable[[Mapping[str, Any], int], Config]) -> Case:
    integers = dict.fromkeys(("out_row", "out_head", "window", "splits", "least"), "i32")
    constants = {"SIZE": size, "PADDED": triton.next_power_of_2(size)}
    tile = choose({**constants, "FLOAT32": dtype == "fp32"}, 90).constants["TILE"]
    return Case(
        name=f"head {size} {dtype}",
        types={"parts": "*fp32", "logs": "*fp32", "contexts": "*i32", "out": f"*{dtype}", **integers},
        constants={**constants, "TILE": tile},
        aligned=("parts", "logs", "out", "out_row", "out_head"),
    )
