"""One kernel compiled for one case, config and GPU."""

from __future__ import annotations

import subprocess
import tempfile
from contextlib import redirect_stdout
from io import StringIO
from typing import Any

from mqlab_kernels.compile.resources import Resources, read_resources
from mqlab_kernels.kernel import Case, Config, Kernel


def compile_kernel(kernel: Kernel, case: Case, config: Config, capability: int) -> Resources:
    """Compile and read back what it takes. Neither a GPU nor a driver is needed, but a process without ``TRITON_INTERPRET``.

    Raises:
        RuntimeError: the process is one of Triton's interpreter.
        Exception: whatever Triton raises for what it cannot compile.
    """
    import triton
    from triton import knobs
    from triton.backends.compiler import GPUTarget

    if knobs.runtime.interpret:
        raise RuntimeError("TRITON_INTERPRET is set: kernels are of the interpreter here, start a process without it")
    # Of what comes out of Triton's cache there is no log, nor a time that it took.
    knobs.nvidia.dump_ptxas_log = knobs.compilation.always_compile = True
    options = {"num_warps": config.num_warps, "num_stages": config.num_stages}
    with redirect_stdout(StringIO()) as log:
        compiled: Any = triton.compile(_source(kernel.function, case, config), target=GPUTarget("cuda", capability, 32), options=options)
    return read_resources(
        usage=_usage(compiled.asm["cubin"]),
        log=log.getvalue(),
        ptx=compiled.asm["ptx"],
        shared=compiled.metadata.shared,
        tensor_memory=compiled.metadata.tmem_size or 0,
    )


def _source(function: Any, case: Case, config: Config) -> Any:
    """What Triton compiles: the signature names every argument, constexprs too."""
    from triton.compiler import ASTSource

    constants = {**case.constants, **config.constants}
    names = function.arg_names
    if set(names) != set(case.types) | set(constants):
        wrong = sorted(set(names) ^ (set(case.types) | set(constants)))
        raise ValueError(f"case {case.name!r} and config name other arguments than the kernel: {', '.join(wrong)}")
    signature = {name: case.types.get(name, "constexpr") for name in names}
    attributes = {(names.index(name),): [["tt.divisibility", 16]] for name in case.aligned}
    return ASTSource(function, signature, constexprs=constants, attrs=attributes)


def _usage(cubin: bytes) -> str:
    """What ``cuobjdump -res-usage`` says of a cubin."""
    from triton import knobs

    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command = [knobs.nvidia.cuobjdump.path, "-res-usage", file.name]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout
