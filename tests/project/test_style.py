"""Rules of this repository that no linter knows."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from statistics import quantiles

ROOT = Path(__file__).resolve().parents[2]
SOURCES = sorted([*(ROOT / "mqlab").rglob("*.py"), *(ROOT / "kernels").rglob("*.py")])
TESTS = sorted(path for path in (ROOT / "tests").rglob("*.py") if path.name != "conftest.py" and "helpers" not in path.parts)

MAX_FILE_LINES = 400
MAX_FUNCTION_LINES_P90 = 35
# A model sleeps as well: what is called on an engine is no wait.
SLEEP = re.compile(r"(?:(?<![\w.])|\b(?:time|asyncio)\.)sleep\((?!0\))")


def relative(path: Path) -> str:
    return str(path.relative_to(ROOT))


def functions(tree: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    return (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


def length(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    return (node.end_lineno or node.lineno) - node.lineno + 1


def is_fixture(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    return any("fixture" in ast.unparse(decorator) for decorator in node.decorator_list)


def sleeping_lines(source: str) -> list[int]:
    """Numbers of lines that sleep, outside fixtures; ``sleep(0)`` only yields to the loop."""
    allowed = {n for node in functions(ast.parse(source)) if is_fixture(node) for n in range(node.lineno, (node.end_lineno or 0) + 1)}
    return [n for n, line in enumerate(source.splitlines(), 1) if SLEEP.search(line) and n not in allowed]


def test_the_sleep_rule_tells_waits_from_fixtures_and_yields() -> None:
    nap = "sleep" + "(1)"
    source = (
        f"def test_a():\n    time.{nap}\n\n@pytest.fixture\ndef b():\n    time.{nap}\n\nasync def test_c():\n    await asyncio.sleep(0)\n"
    )
    assert sleeping_lines(source) == [2]


def test_tests_wait_for_events() -> None:
    sleeping = {relative(path): lines for path in TESTS if (lines := sleeping_lines(path.read_text()))}
    assert not sleeping, "these lines sleep: use until() of mqlab/contract/waiting.py"


def test_files_are_small() -> None:
    lengths = {relative(path): len(path.read_text().splitlines()) for path in SOURCES}
    assert {path: lines for path, lines in lengths.items() if lines > MAX_FILE_LINES} == {}


def test_functions_are_short() -> None:
    lengths = [length(node) for path in SOURCES for node in functions(ast.parse(path.read_text()))]
    assert quantiles(lengths, n=10)[-1] <= MAX_FUNCTION_LINES_P90
