"""Execute a notebook headless into out/, then print the results that it left there.

Usage: python scripts/demo.py notebooks/00_quickstart.ipynb
The notebook in the tree stays as it is. The kernel starts in the notebook's folder, as under JupyterLab.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellControlSignal, DeadKernelError

OUT = Path(__file__).resolve().parent.parent / "out"
RESULTS = OUT / "quickstart.json"
PLOT = OUT / "throughput.png"
CELL_TIMEOUT_S = 300


def main() -> int:
    """Run the notebook named on the command line; the exit status says whether it worked."""
    if len(sys.argv) != 2:
        print(__doc__, file=sys.stderr)
        return 2
    source = Path(sys.argv[1])
    executed = OUT / source.name
    OUT.mkdir(exist_ok=True)
    for stale in (executed, RESULTS, PLOT):
        stale.unlink(missing_ok=True)
    error = execute(source, executed)
    if error:
        print(f"{error}\n\nmqlab: {source} failed; what it did until then: {executed}", file=sys.stderr)
        return 1
    if not RESULTS.exists():
        print(f"mqlab: {source} ran but wrote no {RESULTS}; what it did: {executed}", file=sys.stderr)
        return 1
    report(executed)
    return 0


def execute(source: Path, target: Path) -> Exception | None:
    """Run every cell with this interpreter's kernel and write the outcome to ``target``, failed or not."""
    # A kernel that the user installed under the same name belongs to another interpreter.
    os.environ["JUPYTER_PREFER_ENV_PATH"] = "1"
    os.environ["MQLAB_OUT"] = str(OUT)
    notebook = nbformat.read(source, as_version=4)
    client = NotebookClient(
        notebook,
        timeout=CELL_TIMEOUT_S,
        kernel_name="python3",
        resources={"metadata": {"path": str(source.parent)}},
        on_cell_execute=announce(len(notebook.cells)),
    )
    try:
        client.execute()
    except (CellControlSignal, DeadKernelError) as error:  # a cell failed, a cell hung, the kernel died
        return error
    finally:
        nbformat.write(notebook, target)
    return None


def announce(total: int) -> Any:
    """A hook that prints each code cell's number, the time so far and its first line as it starts."""
    start = time.monotonic()

    def on_cell(cell: Any, cell_index: int) -> None:
        if cell.cell_type == "code":
            first = (cell.source.strip().splitlines() or [""])[0]
            print(f"[{cell_index + 1:>2}/{total}] {time.monotonic() - start:5.1f} s  {first[:90]}", flush=True)

    return on_cell


def report(executed: Path) -> None:
    """Print the results file line by line, then where notebook and plot are."""
    results = json.loads(RESULTS.read_text())
    lines = list(flatten(results))
    width = max((len(name) for name, _ in lines), default=0)
    print("\nResults")
    for name, value in lines:
        print(f"  {name:<{width}}  {value}")
    print(f"\nNotebook  {executed}\nPlot      {PLOT}")


def flatten(value: Any, prefix: str = "") -> Iterator[tuple[str, str]]:
    """Leaves of nested objects as (dotted name, text)."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from flatten(inner, f"{prefix}.{key}" if prefix else str(key))
    else:
        yield prefix, f"{value:.4g}" if isinstance(value, float) else str(value)


if __name__ == "__main__":
    sys.exit(main())
