"""What compilers leave, read and kept: on their output as it was, without compiling."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from mqlab_kernels import catalogue
from mqlab_kernels.compile import report
from mqlab_kernels.compile.resources import Resources, programs_per_multiprocessor, read_resources
from mqlab_kernels.compile.source import fingerprint
from mqlab_kernels.compile.survey import alike, jobs_of
from mqlab_kernels.compile.table import Table
from mqlab_kernels.compile.worker import Job
from mqlab_kernels.kernel import Case, Config, Kernel

USAGE = """
Resource usage:
 Common:
  GLOBAL:0
 Function outer:
  REG:255 STACK:1176 SHARED:0 LOCAL:0 CONSTANT[0]:392 TEXTURE:0 SURFACE:0 SAMPLER:0
"""
LOG = """ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'outer' for 'sm_80'
ptxas info    : Function properties for outer
    1176 bytes stack frame, 1180 bytes spill stores, 2376 bytes spill loads
ptxas info    : Used 255 registers, used 1 barriers, 1176 bytes cumulative stack size
"""
PTX = """
	.param .u64 .ptr .global .align 1 mm_param_0,
	@%p1 ld.global.v4.b32 { %r1, %r2, %r3, %r4 }, [ %rd1 + 0 ];
	ld.global.L1::evict_last.b32 { %r9 }, [ %rd1 + 4 ];
	ld.global.b16 { %rs9 }, [ %rd1 + 4 ];
	cp.async.cg.shared.global [ %r18 + 0 ], [ %rd10 + 0 ], 0x10, %r19;
	cp.async.ca.shared.global [ %r18 + 0 ], [ %rd10 + 0 ], 0x4, %r19;
	mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 { %r226 }, { %r111 }, { %r115 }, { %r226 };
	st.global.v4.b32 [ %rd73 + 0 ], { %r159, %r160, %r161, %r162 };
"""


def read(**changed: Any) -> Resources:
    return read_resources(**{"usage": USAGE, "log": LOG, "ptx": PTX, "shared": 98304, "tensor_memory": 0, **changed})


def test_what_spills_is_read() -> None:
    taken = read()
    assert (taken.registers, taken.stack, taken.spills, taken.shared) == (255, 1176, 3556, 98304)
    assert taken.loads == {"16": 2, "4": 2, "2": 1}
    assert taken.products == "mma"


def test_spills_of_a_called_function_count() -> None:
    other = LOG.replace("1180", "8").replace("2376", "16")
    assert read(log=LOG + other).spills == 3556 + 24


def test_a_stack_is_no_spill() -> None:
    assert read(log=LOG.replace("1180", "0").replace("2376", "0")).misfits(80) == []


@pytest.mark.parametrize(
    ("ptx", "products"), [("wgmma.mma_async.sync", "wgmma"), ("tcgen05.mma.cta_group::1", "tcgen05"), ("fma.rn.f32", "")]
)
def test_products_are_told_apart(ptx: str, products: str) -> None:
    assert read(ptx=ptx).products == products


@pytest.mark.parametrize("changed", [{"usage": "cuobjdump fatal : no cubin"}, {"log": ""}])
def test_output_of_another_kind_is_refused(changed: dict[str, str]) -> None:
    with pytest.raises(ValueError, match="no REG and STACK"):
        read(**changed)


SMALL = Resources(registers=64, stack=0, spills=0, shared=0, tensor_memory=0, loads={}, products="")


@pytest.mark.parametrize(("capability", "kib"), [(80, 163), (90, 227), (100, 227)])
def test_shared_memory_has_a_limit(capability: int, kib: int) -> None:
    assert replace(SMALL, shared=kib * 1024).misfits(capability) == []
    assert len(replace(SMALL, shared=kib * 1024 + 1).misfits(capability)) == 1


def test_tensor_memory_has_a_limit() -> None:
    assert replace(SMALL, tensor_memory=512).misfits(100) == []
    assert len(replace(SMALL, tensor_memory=1024, spills=4).misfits(100)) == 2


@pytest.mark.parametrize(
    ("registers", "shared_kib", "warps", "programs"),
    [(64, 0, 4, 8), (255, 0, 4, 2), (255, 0, 8, 1), (16, 0, 4, 16), (16, 0, 1, 32), (32, 100, 4, 2), (32, 227, 4, 1), (65, 0, 4, 7)],
)
def test_programs_of_an_h100(registers: int, shared_kib: int, warps: int, programs: int) -> None:
    assert programs_per_multiprocessor(replace(SMALL, registers=registers, shared=shared_kib * 1024), warps, 90) == programs


SOURCE = '''
import triton
import triton.language as tl

FACTOR = tl.constexpr(2)
OTHER = tl.constexpr(3)


@triton.jit
def helper(x):
    return x * FACTOR


@triton.jit
def kernel(x, SIZE: tl.constexpr):
    """Twice."""
    at = tl.arange(0, SIZE)
    # A comment.
    tl.store(x + at, helper(tl.load(x + at)))


def launcher(x):
    kernel[(1,)](x, 16)
'''


@pytest.fixture
def made(tmp_path: Path) -> Callable[[str], ModuleType]:
    """A module of the package with that source."""

    def make(source: str) -> ModuleType:
        path = tmp_path / f"m{len(list(tmp_path.iterdir()))}.py"
        path.write_text(source)
        spec = importlib.util.spec_from_file_location("mqlab_kernels.made", path)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    return make


@pytest.mark.parametrize(
    ("old", "new", "changes"),
    [
        ("# A comment.", "# Another.", False),
        ('"""Twice."""', '"""Two times."""', False),
        ("kernel[(1,)](x, 16)", "kernel[(2,)](x, 8)", False),
        ("tl.constexpr(3)", "tl.constexpr(4)", False),
        ("tl.constexpr(2)", "tl.constexpr(4)", True),
        ("x * FACTOR", "FACTOR + x", True),
        ("tl.arange(0, SIZE)", "tl.arange(0, SIZE) + 1", True),
        ("@triton.jit\ndef kernel", "@triton.jit(do_not_specialize=['x'])\ndef kernel", True),
    ],
)
def test_the_hash_is_of_what_is_compiled(made: Callable[[str], ModuleType], old: str, new: str, changes: bool) -> None:
    before, after = made(SOURCE), made(SOURCE.replace(old, new))
    assert (fingerprint(before.kernel) != fingerprint(after.kernel)) == changes


FIRST, SECOND = Config(constants={"TILE": 1}), Config(constants={"TILE": 2}, num_warps=8)
CASES = (Case(name="a", types={"x": "*bf16"}, constants={"SIZE": 16}), Case(name="b", types={"x": "*fp16"}, constants={"SIZE": 32}))


@pytest.fixture
def kernel(made: Callable[[str], ModuleType]) -> Kernel:
    return Kernel(
        name="kernel",
        function=made(SOURCE).kernel,
        cases=CASES,
        sweep=(FIRST, SECOND),
        choose=lambda constants, sm: (FIRST, SECOND)[sm == 100],
    )


def filled(kernel: Kernel, **changed: Any) -> Table:
    table = Table(kernel)
    for job in jobs_of(kernel, (90, 100), swept=2):
        table.add(job, {**SMALL.as_dict(), "seconds": 0.5, **changed})
    return table


def test_shipped_configs_are_compiled_first(kernel: Kernel) -> None:
    jobs = jobs_of(kernel, (90, 100), swept=2)
    assert [(job.case, job.config, job.capability) for job in jobs[:4]] == [(0, 0, 90), (0, 1, 100), (1, 0, 90), (1, 1, 100)]
    assert len(jobs) == len(set(jobs)) == 8
    assert jobs_of(kernel, (90, 100)) == jobs[:4]


def test_cases_that_only_launches_tell_apart_are_compiled_once() -> None:
    """A head of 32 that is rotated whole, and one of 80 of which 32 are."""
    rotary = catalogue.kernel("rotary")
    whole, part = (next(i for i, case in enumerate(rotary.cases) if case.name.startswith(name)) for name in ("head 32, 32", "head 80, 32"))
    jobs = [Job("rotary", case, config, sm) for case in (whole, part, part + 1) for config in (0, 1) for sm in (80, 90)]
    groups = alike(jobs)
    assert groups == [*([job, job._replace(case=part)] for job in jobs[:4]), *([job] for job in jobs[8:])]


def test_a_table_is_read_back(kernel: Kernel, tmp_path: Path) -> None:
    table = filled(kernel)
    table.add(jobs_of(kernel, (90,), swept=2)[-1], {"error": "not compiled within 60 s"})
    table.save(tmp_path)
    assert Table.load(kernel, tmp_path).rows == table.rows
    saved = json.loads((tmp_path / "kernel.json").read_text())
    assert sum(dict(zip(saved["columns"], row, strict=True))["shipped"] for row in saved["rows"]) == 4


def test_a_failure_of_what_ships_is_tried_again(kernel: Kernel, tmp_path: Path) -> None:
    table, failing = filled(kernel), jobs_of(kernel, (90,))[0]
    table.add(failing, {"error": "not compiled within 60 s"})
    assert len(list(report.misfits(table))) == 1
    table.save(tmp_path)
    assert set(table.rows) - set(Table.load(kernel, tmp_path).rows) == {failing}


def test_a_kernel_without_a_file_has_no_rows(kernel: Kernel, tmp_path: Path) -> None:
    assert Table.load(kernel, tmp_path).rows == {}


def test_rows_of_other_code_are_dropped(kernel: Kernel, made: Callable[[str], ModuleType], tmp_path: Path) -> None:
    filled(kernel).save(tmp_path)
    assert Table.load(replace(kernel, function=made(SOURCE.replace("x * FACTOR", "x")).kernel), tmp_path).rows == {}


def test_rows_of_what_changed_are_dropped_and_places_found_anew(kernel: Kernel, tmp_path: Path) -> None:
    filled(kernel).save(tmp_path)
    other = replace(CASES[0], constants={"SIZE": 64})
    loaded = Table.load(replace(kernel, cases=(CASES[1], other), sweep=(replace(FIRST, num_stages=5), SECOND)), tmp_path)
    assert {(job.case, job.config) for job in loaded.rows} == {(0, 1)}


def test_what_must_not_ship_is_named(kernel: Kernel) -> None:
    table = filled(kernel)
    assert list(report.misfits(table)) == []
    shipped, other = jobs_of(kernel, (90,), swept=2)[0], jobs_of(kernel, (90,), swept=2)[-1]
    table.add(shipped, {**SMALL.as_dict(), "spills": 8, "seconds": 1.0})
    table.add(other, {"error": "not compiled within 60 s"})
    assert list(report.misfits(table)) == ["kernel, a, sm_90, TILE 1, w4, s2: 8 bytes of spills"]
    assert "Compiled: 8 of case, config and GPU; 1 spill, 0 do not fit, 1 did not compile." in report.page([table])


def test_the_page_has_a_line_for_each_that_ships(kernel: Kernel) -> None:
    page = report.page([filled(kernel), Table(replace(kernel, name="untried"))])
    assert [line for line in page.splitlines() if line.startswith("| b")] == [
        "| b | 90 | TILE 1, w4, s2 | 64 | 0 | 0.0 | 8 |  |  |",
        "| b | 100 | TILE 2, w8, s2 | 64 | 0 | 0.0 | 4 |  |  |",
    ]
    assert "untried" not in page
