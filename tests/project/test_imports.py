"""What importing the packages costs and where it works from."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
HEAVY = ("torch", "transformers", "matplotlib", "IPython", "ipywidgets", "pandas", "pyarrow", "numba", "zmq")


def run(code: str, cwd: Path) -> str:
    done = subprocess.run([sys.executable, "-c", code], cwd=cwd, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_import_mqlab_is_light(tmp_path: Path) -> None:
    loaded = run(f"import sys, mqlab; print([name for name in {HEAVY} if name in sys.modules])", tmp_path)
    assert loaded == "[]"


def test_an_engine_without_a_model_starts_light(tmp_path: Path) -> None:
    """Numbers and profilers cost as much as all the rest of its start, and are loaded where a request asks for them."""
    names = ("numpy", "psutil", "cProfile", "llguidance")
    code = "import mqlab.wire.boot, mqlab.topologies.mq, mqlab.topologies.v1, mqlab.engine.echo"
    loaded = run(f"import sys; {code}; print([name for name in {names} if name in sys.modules])", tmp_path)
    assert loaded == "[]"


@pytest.mark.parametrize(
    "package", ["mqlab.types", "mqlab.config", "mqlab.engine", "mqlab.client", "mqlab.front", "mqlab.server", "mqlab.text"]
)
def test_nothing_beside_the_model_loads_torch(package: str, tmp_path: Path) -> None:
    code = f"""
import importlib, pkgutil, sys
package = importlib.import_module({package!r})
for module in pkgutil.walk_packages(getattr(package, "__path__", []), package.__name__ + "."):
    importlib.import_module(module.name)
print([name for name in ("torch", "transformers", "matplotlib", "IPython") if name in sys.modules])
"""
    assert run(code, tmp_path) == "[]"


def test_transformers_imports_in_the_repository_root() -> None:
    """transformers looks for a package named kernels while it is imported, and must not run ours."""
    code = "import transformers.integrations.hub_kernels, sys; print(getattr(sys.modules.get('kernels'), '__file__', None))"
    assert run(code, ROOT) == "None"


def test_kernels_folder_is_no_package() -> None:
    assert not (ROOT / "kernels" / "__init__.py").exists()
