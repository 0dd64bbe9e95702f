"""What of a multiprocessor a compiled kernel takes, read from what the compiler left."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import asdict, dataclass
from typing import Any

KIB = 1024
SHARED_LIMIT = {80: 163 * KIB, 90: 227 * KIB, 100: 227 * KIB}
"""Bytes of shared memory that one program may have, by compute capability. Source: CUDA C++ Programming Guide, technical specifications."""
TENSOR_MEMORY_LIMIT = 512
"""Columns of tensor memory that one program may have, where there is any. Source: PTX ISA, tcgen05.alloc."""

_REGISTERS, _STACK = re.compile(r"\bREG:(\d+)"), re.compile(r"\bSTACK:(\d+)")
_SPILLS = re.compile(r"(\d+) bytes spill (?:stores|loads)")
_LOAD = re.compile(r"\bld\.global\S*?(?:\.v(\d))?\.[bsuf](\d+)\s|\bcp\.async\.c[ag]\.shared\.global\s[^,]*,[^,]*,\s*0x(\w+)")
_PRODUCTS = (("tcgen05", "tcgen05.mma"), ("wgmma", "wgmma.mma_async"), ("mma", "mma.sync"))


@dataclass(frozen=True, kw_only=True)
class Resources:
    """What one compiled kernel takes.

    Attributes:
        registers: of a thread.
        stack: bytes of a thread's stack frame; what spills lies there.
        spills: bytes of a thread's spill stores and loads.
        shared: bytes of shared memory of a program.
        tensor_memory: columns of tensor memory of a program.
        loads: load instructions from global memory, by the bytes that a thread loads with one.
        products: the instruction of its tensor-core products ("tcgen05", "wgmma", "mma"), "" if it has none.
    """

    registers: int
    stack: int
    spills: int
    shared: int
    tensor_memory: int
    loads: dict[str, int]
    products: str

    def misfits(self, capability: int) -> list[str]:
        """Why it must not ship: nothing, or what spills or does not fit, in words."""
        found = [f"{self.spills} bytes of spills"] if self.spills else []
        if self.shared > SHARED_LIMIT[capability]:
            found.append(f"{self.shared} bytes of shared memory, above {SHARED_LIMIT[capability]}")
        if self.tensor_memory > TENSOR_MEMORY_LIMIT:
            found.append(f"{self.tensor_memory} columns of tensor memory, above {TENSOR_MEMORY_LIMIT}")
        return found

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


def read_resources(*, usage: str, log: str, ptx: str, shared: int, tensor_memory: int) -> Resources:
    """Resources of a compiled kernel.

    Args:
        usage: what ``cuobjdump -res-usage`` prints of the cubin.
        log: what ``ptxas -v`` wrote.
        ptx: the kernel in PTX.
        shared: bytes of shared memory that Triton allocated.
        tensor_memory: columns of tensor memory that Triton allocated.

    Raises:
        ValueError: the tools' output names no registers, stack or spills.
    """
    registers, stack, spills = _REGISTERS.search(usage), _STACK.search(usage), _SPILLS.findall(log)
    if not registers or not stack or not spills:
        raise ValueError(f"no REG and STACK in {usage!r}, or no spills in {log!r}")
    return Resources(
        registers=int(registers[1]),
        stack=int(stack[1]),
        spills=sum(map(int, spills)),
        shared=shared,
        tensor_memory=tensor_memory,
        loads=_loads(ptx),
        products=next((name for name, instruction in _PRODUCTS if instruction in ptx), ""),
    )


def _loads(ptx: str) -> dict[str, int]:
    """How many load instructions there are of each width in bytes, widest first."""
    counts = Counter(int(copied, 16) if copied else int(lanes or 1) * int(bits) // 8 for lanes, bits, copied in _LOAD.findall(ptx))
    return {str(width): counts[width] for width in sorted(counts, reverse=True)}


def programs_per_multiprocessor(resources: Resources, warps: int, capability: int) -> int:
    """How many programs run on a multiprocessor at once.

    Registers are given to a warp in units of 256 of the 65,536, shared memory with 1 KiB a program for the system out of the limit of one
    program plus 1 KiB, and 64 warps and 32 programs are the most. Source: CUDA's occupancy calculator.
    """
    by_registers = 65536 // (-(-resources.registers * 32 // 256) * 256 * warps)
    by_shared = (SHARED_LIMIT[capability] + KIB) // (resources.shared + KIB)
    return min(by_registers, by_shared, 64 // warps, 32)
