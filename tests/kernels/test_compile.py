"""Kernels compiled ahead of time: they compile, fit and do not spill, and the tables in profiles/kernels say so of the code as it is."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from compiling import KERNELS, REMEDY, ROOT, TABLES, differing, wrong
from mqlab_kernels import catalogue
from mqlab_kernels.__main__ import main
from mqlab_kernels.compile import report
from mqlab_kernels.compile.source import code_of
from mqlab_kernels.compile.survey import compile_all, jobs_of
from mqlab_kernels.compile.table import Table
from mqlab_kernels.compile.worker import Job, Worker
from mqlab_kernels.kernel import CAPABILITIES, Kernel

PACKAGE = ROOT / "kernels" / "mqlab_kernels"

each_kernel = pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.name)


def without_interpreter(script: str, **environment: str) -> str:
    """What a script of tests/helpers prints in a process that could compile."""
    inherited = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, str(ROOT / "tests" / "helpers" / script)]
    done = subprocess.run(command, env=inherited | environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_sample_compiles_as_the_tables_say() -> None:
    tables = {kernel.name: Table(kernel) for kernel in KERNELS}
    jobs = [Job(kernel.name, 0, kernel.sweep.index(kernel.choose(kernel.cases[0].constants, sm)), sm) for kernel, sm in _sample()]
    for job, outcome in compile_all(jobs, timeout_s=100):
        tables[job.kernel].add(job, outcome)
    assert wrong(tables.values()) == []
    assert differing(tables.values()) == [], REMEDY


def _sample() -> list[tuple[Kernel, int]]:
    """Each kernel for one GPU, and each GPU for some kernel."""
    return [(kernel, CAPABILITIES[place % len(CAPABILITIES)]) for place, kernel in enumerate(KERNELS)]


@each_kernel
def test_the_committed_table_is_of_the_code_as_it_is(kernel: Kernel) -> None:
    table = Table.load(kernel, TABLES)
    missing = [job for job in jobs_of(kernel, CAPABILITIES, swept=1) if job not in table.rows]
    assert missing == [], REMEDY
    assert list(report.misfits(table)) == []


def test_the_page_is_of_the_tables() -> None:
    assert (TABLES / "README.md").read_text() == report.page(Table.load(kernel, TABLES) for kernel in KERNELS), REMEDY
    assert {path.stem for path in TABLES.glob("*.json")} == {kernel.name for kernel in KERNELS}, "tables of kernels that are gone: remove"


def test_all_code_for_a_gpu_is_compiled() -> None:
    """Whatever ``triton.jit`` made in this package is a kernel of the catalogue, or one of those calls it."""
    reached = {name for kernel in KERNELS for name in code_of(kernel.function)}
    assert {name for path in PACKAGE.rglob("*.py") for name in _jitted(path)} - reached == set()


def _jitted(path: Path) -> list[str]:
    module = ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts)
    functions = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.FunctionDef)]
    return [f"{module}.{node.name}" for node in functions if any("triton.jit" in ast.unparse(one) for one in node.decorator_list)]


def test_every_file_of_the_catalogue_has_kernels_of_names_of_their_own() -> None:
    assert [file for file in catalogue.FILES if not import_module(f"mqlab_kernels.{file}").KERNELS] == []
    assert len({kernel.name for kernel in KERNELS}) == len(KERNELS)


@pytest.mark.parametrize(
    ("option", "value", "words"),
    [
        ("--kernel", "paged_encode", "no kernel 'paged_encode': there are reshape_cache, "),
        ("--arch", "abc", "'abc' is none of 80, 90, 100; give some of them, separated by commas"),
        ("--arch", "80,95", "'95' is none of 80, 90, 100"),
        ("--jobs", "-1", "'-1' must be a whole number from 1 on"),
        ("--sweep", "all", "'all' must be a whole number from 1 on"),
        ("--timeout", "0", "'0' must be a number above 0"),
        ("--timeout", "soon", "'soon' must be a number above 0"),
    ],
)
def test_a_wrong_value_is_told_what_it_may_be(option: str, value: str, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["compile", option, value])
    assert ended.value.code == 2
    assert f"argument {option}: {words}" in capsys.readouterr().err


@pytest.mark.full
def test_the_command_keeps_what_it_found_and_compiles_nothing_twice(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["compile", "--kernel", "advance", "--sweep", "--output", str(tmp_path)]
    counts = [(main(command), capsys.readouterr().out.split()[0]) for _ in range(2)]
    table = Table.load(catalogue.kernel("advance"), tmp_path)
    assert counts == [(0, str(len(table.rows))), (0, "0")]
    assert table.rows.keys() == set(jobs_of(table.kernel, CAPABILITIES, swept=1))
    assert "## advance" in (tmp_path / "README.md").read_text()


@each_kernel
def test_what_ships_is_of_the_sweep(kernel: Kernel) -> None:
    chosen = [kernel.choose(case.constants, sm) for case in kernel.cases for sm in CAPABILITIES]
    assert [config for config in chosen if config not in kernel.sweep] == []
    assert all(kernel.sweep.count(config) == 1 for config in kernel.sweep)


@each_kernel
def test_cases_name_the_arguments_of_the_kernel(kernel: Kernel) -> None:
    names = set(kernel.function.arg_names)
    assert len({case.name for case in kernel.cases}) == len(kernel.cases) > 0
    for case in kernel.cases:
        assert set(case.aligned) <= set(case.types)
        assert {frozenset({*case.types, *case.constants, *config.constants}) for config in kernel.sweep} == {frozenset(names)}


def test_launches_are_cases_of_the_catalogue() -> None:
    """What the device bench launches is what was compiled: the same types of arguments, the same constants, a config of the sweep."""
    launches = [json.loads(line) for line in without_interpreter("pretendedlaunches.py").splitlines()]
    unknown = [launch for launch in launches if not _is_known(**launch)]
    assert {launch["kernel"] for launch in launches} == {kernel.name for kernel in KERNELS}
    assert unknown == []


def _is_known(kernel: str, types: dict[str, str], constants: dict[str, Any]) -> bool:
    known = catalogue.kernel(kernel)
    fitting = [
        case for case in known.cases if case.constants.items() <= constants.items() and _alike(types).items() <= _alike(case.types).items()
    ]
    return any({**case.constants, **config.constants} == constants for case in fitting for config in known.sweep)


def _alike(types: Mapping[str, str]) -> dict[str, str]:
    """A float16 compiles as a bfloat16 does."""
    return {name: kind.replace("fp16", "bf16") for name, kind in types.items()}


def test_spills_are_seen(tmp_path: Path) -> None:
    found = json.loads(without_interpreter("spillingkernel.py", TRITON_CACHE_DIR=str(tmp_path)))
    assert [[bool(one["spills"]) for one in pair] for pair in found] == [[False, True]] * 3
    assert [small["products"] for small, _ in found] == ["mma", "wgmma", "tcgen05"]
    assert all(large["registers"] == 255 and large["stack"] for _, large in found)
    assert all(list(one["loads"]) == ["16"] for pair in found for one in pair)


@pytest.mark.full
def test_what_takes_too_long_is_ended_and_the_next_goes_on(tmp_path: Path) -> None:
    job = next(iter(jobs_of(KERNELS[0], (90,))))
    with Worker(tmp_path, timeout_s=0) as worker:
        assert worker.run(job) == {"error": "not compiled within 0 s"}
        assert worker.run(job) == {"error": "not compiled within 0 s"}
    with Worker(tmp_path, timeout_s=100) as worker:
        assert "registers" in worker.run(job)
