"""Print environment.yml: what pyproject.toml asks for, in the versions of constraints.txt.

Usage: python scripts/environment.py > environment.yml
"""

from __future__ import annotations

import tomllib
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parent.parent
HEAD = """\
# The environment of constraints.txt for conda users; written by 'make lock'.
#   conda env create -f environment.yml && conda activate mqlab
# On Linux without an NVIDIA GPU, this first keeps torch small:
#   export PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu
name: mqlab
channels:
  - conda-forge
dependencies:
  - python=3.11
  - pip
  - make
  - git
  - pip:
      - --constraint constraints.txt
"""


def locked() -> dict[str, str]:
    """Canonical name to the line of the lock."""
    lines = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if not line.startswith("#")]
    return {canonicalize_name(line.split("==")[0]): line for line in lines}


def direct() -> list[str]:
    """Canonical names of what the project and its extras ask for, in their order."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = [line for lines in project["optional-dependencies"].values() for line in lines]
    names = [canonicalize_name(Requirement(line).name) for line in [*project["dependencies"], *extras]]
    return [name for name in dict.fromkeys(names) if name != "mqlab"]


def main() -> None:
    """Print the file."""
    lock = locked()
    pinned = "".join(f"      - {lock[name]}\n" for name in direct())
    print(HEAD + pinned + "      - --editable .[dev]")


if __name__ == "__main__":
    main()
