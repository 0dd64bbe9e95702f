"""Tables in words: the page that lists what ships, and what must not."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from mqlab_kernels.compile.resources import KIB, Resources, programs_per_multiprocessor
from mqlab_kernels.compile.table import Row, Table

HEAD = """# What the kernels take

Every kernel, compiled ahead of time for sm_80 (A100), sm_90 (H100, H200) and sm_100 (B200) with the config that ships for each of its
cases. No GPU is needed, and none was used: this says that kernels compile, do not spill and fit, not that they are fast.

Written by `make kernels`, which compiles again what changed. The JSON files beside this page have all rows, those of the whole sweep too.
A test fails where a table is not of the code as it is.

- config: constants that are a matter of speed, w: warps, s: stages of the pipeline
- registers: of a thread, at most 255; spills: bytes of a thread's stores and loads of what found no room in them
- shared: KiB of a program; sm_80 has 163, sm_90 and sm_100 227
- programs: how many a multiprocessor runs at once by registers, shared memory and warps
- loads: instructions that load from global memory, by the bytes that a thread loads with one; 16 is the widest
- products: the instruction of products of tiles on tensor cores
"""
COLUMNS = ("case", "sm", "config", "registers", "spills", "shared", "programs", "loads", "products")


def page(tables: Iterable[Table]) -> str:
    """All kernels' tables as Markdown."""
    return "\n".join([HEAD, *(_section(table) for table in tables if table.rows)])


def misfits(table: Table) -> Iterator[str]:
    """Shipped configs that do not compile, spill or do not fit: what and why."""
    for row in table.shipped():
        why = row.resources.misfits(row.job.capability) if row.resources else [row.error]
        if why:
            yield f"{table.kernel.name}, {_named(table, row)}: {'; '.join(why)}"


def line(table: Table, row: Row) -> str:
    """One compilation in a line: case, GPU, config, and what it takes."""
    head = f"{table.kernel.name}, {_named(table, row)}"
    if row.resources is None:
        return f"{head}: {row.error}"
    units = zip(_taken(table, row, row.resources), COLUMNS[3:], strict=True)
    return f"{head}: {', '.join(f'{column} {value}' for value, column in units if value)} ({row.seconds:.1f} s)"


def _named(table: Table, row: Row) -> str:
    return f"{table.kernel.cases[row.job.case].name}, sm_{row.job.capability}, {_config(table, row)}"


def _section(table: Table) -> str:
    rows = [_cells(table, row) for row in table.shipped()]
    lines = ["| " + " | ".join(cells) + " |" for cells in (COLUMNS, ["---"] * len(COLUMNS), *rows)]
    return "\n".join([f"## {table.kernel.name}\n", *lines, "", _of_sweep(table), ""])


def _cells(table: Table, row: Row) -> list[str]:
    named = [table.kernel.cases[row.job.case].name, str(row.job.capability), _config(table, row)]
    if row.resources is None:
        return [*named, row.error, *[""] * (len(COLUMNS) - len(named) - 1)]
    return [*named, *_taken(table, row, row.resources)]


def _taken(table: Table, row: Row, resources: Resources) -> list[str]:
    """The columns from registers on."""
    programs = programs_per_multiprocessor(resources, table.kernel.sweep[row.job.config].num_warps, row.job.capability)
    loads = ", ".join(f"{count}×{width} B" for width, count in resources.loads.items())
    counts = [str(resources.registers), str(resources.spills), f"{resources.shared / KIB:.1f}", str(programs)]
    return [*counts, loads, resources.products]


def _config(table: Table, row: Row) -> str:
    config = table.kernel.sweep[row.job.config]
    constants = [f"{name} {value}" for name, value in config.constants.items()]
    return ", ".join([*constants, f"w{config.num_warps}", f"s{config.num_stages}"])


def _of_sweep(table: Table) -> str:
    """How many configs were tried, and how many of them are no candidates."""
    rows = table.rows.values()
    found = [(row.job, row.resources) for row in rows if row.resources]
    spilling = sum(bool(taken.spills) for _, taken in found)
    too_large = sum(not taken.spills and bool(taken.misfits(job.capability)) for job, taken in found)
    failed = len(rows) - len(found)
    return f"Compiled: {len(rows)} of case, config and GPU; {spilling} spill, {too_large} do not fit, {failed} did not compile."
