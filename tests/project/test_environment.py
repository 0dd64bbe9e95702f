"""pyproject.toml, the lock and environment.yml say the same."""

from __future__ import annotations

import sys
import tomllib
from importlib.metadata import distributions
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import NormalizedName, canonicalize_name

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
CONDA = yaml.safe_load((ROOT / "environment.yml").read_text())["dependencies"]


def pins(lines: list[str]) -> dict[NormalizedName, str]:
    """Canonical name → version, of lines such as ``torch==2.13.0``."""
    pinned = [line.split("==") for line in lines if "==" in line and not line.startswith("#")]
    return {canonicalize_name(name): version for name, version in pinned}


def direct() -> list[Requirement]:
    """What pyproject.toml asks for itself, over all extras."""
    extras = [line for lines in PROJECT["optional-dependencies"].values() for line in lines]
    found = [Requirement(line) for line in [*PROJECT["dependencies"], *extras]]
    return [one for one in found if one.name != "mqlab"]


LOCK = pins((ROOT / "constraints.txt").read_text().splitlines())
PIP_OF_CONDA = next(entry["pip"] for entry in CONDA if isinstance(entry, dict))


def test_lock_is_plain_pins_without_local_builds_or_cuda() -> None:
    lines = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if not line.startswith("#")]
    assert all(line.count("==") == 1 and "+" not in line and " " not in line for line in lines)
    assert not [name for name in LOCK if name.startswith(("nvidia", "cuda"))]


@pytest.mark.parametrize("requirement", direct(), ids=lambda requirement: requirement.name)
def test_lock_pins_what_the_project_asks_for(requirement: Requirement) -> None:
    assert requirement.specifier.contains(LOCK[canonicalize_name(requirement.name)])


def test_triton_is_no_part_of_the_demo() -> None:
    assert "triton" not in {Requirement(line).name for line in PROJECT["dependencies"]}


def test_conda_environment_has_the_pins_of_the_lock() -> None:
    expected = {canonicalize_name(one.name): LOCK[canonicalize_name(one.name)] for one in direct()}
    assert pins(PIP_OF_CONDA) == expected


def test_conda_environment_installs_mqlab_under_the_lock() -> None:
    assert "--constraint constraints.txt" in PIP_OF_CONDA
    assert "--editable .[dev]" in PIP_OF_CONDA


@pytest.mark.skipif(sys.version_info[:2] != (3, 11), reason="the lock is of Python 3.11")
def test_this_environment_is_the_locked_one() -> None:
    """Pins that are installed here are installed in that version."""
    here = {canonicalize_name(one.metadata["Name"]): one.version.split("+")[0] for one in distributions()}
    assert {name: here[name] for name in LOCK if name in here} == {name: LOCK[name] for name in LOCK if name in here}
