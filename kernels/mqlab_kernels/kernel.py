"""What a Triton kernel's file says of it: how it may be compiled, for what it ships, and with what."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

CAPABILITIES = (80, 90, 100)
"""Compute capabilities that configs ship for: A100, H100 and H200, B200."""


@dataclass(frozen=True, kw_only=True)
class Config:
    """One way to compile a kernel.

    Attributes:
        constants: the constexprs that are a matter of speed alone, such as tile sizes.
        num_warps: warps of a program.
        num_stages: depth of the pipeline of its loops.
    """

    constants: Mapping[str, int] = field(default_factory=dict)
    num_warps: int = 4
    num_stages: int = 2

    @property
    def options(self) -> dict[str, Any]:
        """Keyword arguments of a launch: ``kernel[grid](..., **config.options)``."""
        return {**self.constants, "num_warps": self.num_warps, "num_stages": self.num_stages}


@dataclass(frozen=True, kw_only=True)
class Case:
    """One use that a kernel is compiled for.

    Attributes:
        name: what it is, such as "8B bf16, head 128, ratio 4".
        types: of each argument that is no constexpr, in Triton's spelling ("*bf16", "*fp32", "i32", "fp32"), by name.
        constants: the constexprs that are a matter of the case, such as the head size, by name.
        aligned: the names of pointers and integers that are multiples of 16.
    """

    name: str
    types: Mapping[str, str]
    constants: Mapping[str, Any]
    aligned: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Kernel:
    """A kernel of this package.

    Attributes:
        name: of the kernel.
        function: what ``triton.jit`` made.
        cases: what it ships for: all heads, types and sizes that differ in the compiled code and are in use.
        sweep: configs that are tried.
        choose: the shipped config of a case's constants and a compute capability such as 90, one of the sweep.
    """

    name: str
    function: Any
    cases: tuple[Case, ...]
    sweep: tuple[Config, ...]
    choose: Callable[[Mapping[str, Any], int], Config]
