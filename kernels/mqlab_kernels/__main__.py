"""``python -m mqlab_kernels compile``: all kernels compiled ahead of time, with what they take."""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from mqlab_kernels import catalogue
from mqlab_kernels.compile import report
from mqlab_kernels.compile.survey import TIMEOUT_S, compile_all, jobs_of
from mqlab_kernels.compile.table import Table
from mqlab_kernels.compile.worker import Job
from mqlab_kernels.kernel import CAPABILITIES, Kernel


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; 1 where a shipped config spills, does not fit or does not compile, 2 where there is no Triton, 130 after Ctrl-C."""
    if find_spec("triton") is None:
        print("kernels are compiled by Triton, which is not installed: pip install 'mqlab[gpu]'", file=sys.stderr)
        return 2
    try:
        return _run(_parser().parse_args(arguments))
    except KeyboardInterrupt:
        return 130


def _run(options: argparse.Namespace) -> int:
    """Compile what was asked for and is not in the tables yet, and show or keep it."""
    kernels = options.kernel or catalogue.kernels()
    tables = {one.name: Table.load(one, options.output) if options.output and not options.again else Table(one) for one in kernels}
    jobs = [job for one in kernels for job in jobs_of(one, options.arch, swept=options.sweep) if job not in tables[one.name].rows]
    _compile(jobs, tables, options)
    if not options.output:
        print("\n".join(report.line(table, row) for table in tables.values() for row in table.in_order()))
    else:
        (options.output / "README.md").write_text(report.page(Table.load(one, options.output) for one in catalogue.kernels()))
    wrong = [line for table in tables.values() for line in report.misfits(table)]
    print("\n".join([*wrong, f"{len(jobs)} compiled, {len(wrong)} shipped configs must not ship"]))
    return 1 if wrong else 0


def _compile(jobs: Sequence[Job], tables: dict[str, Table], options: argparse.Namespace) -> None:
    """Fill the tables, and keep what is there at each end, an interruption's too."""
    from tqdm import tqdm

    try:
        with tqdm(total=len(jobs), desc="kernels", unit="compile", disable=not jobs) as bar:
            for job, outcome in compile_all(jobs, workers=options.jobs, timeout_s=options.timeout):
                tables[job.kernel].add(job, outcome)
                bar.update()
    finally:
        if options.output:
            for table in tables.values():
                table.save(options.output)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m mqlab_kernels", description=__doc__)
    command = parser.add_subparsers(required=True, metavar="COMMAND").add_parser(
        "compile", help="compile kernels ahead of time, for which no GPU is needed, and read back registers, spills and shared memory"
    )
    command.add_argument("--kernel", action="append", type=_kernel, metavar="NAME", help="only this one; may be given again (default: all)")
    command.add_argument("--arch", type=_capabilities, default=CAPABILITIES, help="compute capabilities (default: 80,90,100)")
    command.add_argument(
        "--sweep",
        type=_count,
        nargs="?",
        const=1,
        default=0,
        metavar="CASES",
        help="every config of so many first cases, too (1)",
    )
    command.add_argument("--output", type=Path, metavar="DIR", help="keep tables here, and compile only what they lack (default: print)")
    command.add_argument("--again", action="store_true", help="compile what the tables have, too")
    command.add_argument("--timeout", type=_seconds, default=TIMEOUT_S, help="seconds that one compilation may take (default: %(default)g)")
    command.add_argument("--jobs", type=_count, help="how many at once (default: one a processor)")
    return parser


def _kernel(name: str) -> Kernel:
    try:
        return catalogue.kernel(name)
    except KeyError as error:
        raise argparse.ArgumentTypeError(error.args[0]) from None


def _capabilities(text: str) -> tuple[int, ...]:
    known = {str(one): one for one in CAPABILITIES}
    names = text.split(",")
    if unknown := [name for name in names if name not in known]:
        raise argparse.ArgumentTypeError(f"{unknown[0]!r} is none of {', '.join(known)}; give some of them, separated by commas")
    return tuple(known[name] for name in names)


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} must be a whole number from 1 on")
    return int(text)


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} must be a number above 0")
    return seconds


if __name__ == "__main__":
    sys.exit(main())
