"""A built wheel, installed elsewhere, is the whole product."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PIP = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input", "-q"]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    subprocess.run([*PIP, "wheel", "--no-deps", "--no-build-isolation", "-w", folder, ROOT], check=True, capture_output=True, text=True)
    return next(folder.glob("mqlab-*.whl"))


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("installed")
    subprocess.run([*PIP, "install", "--no-deps", "--target", target, wheel], check=True, capture_output=True, text=True)
    return target


def shipped(*folders: str) -> set[str]:
    """Files of the tree, templates and data too, as paths from the root of their import path."""
    files = (path for folder in folders for path in (ROOT / folder).rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    return {str(path.relative_to(ROOT)).removeprefix("kernels/") for path in files}


def test_holds_every_file_of_the_packages_and_nothing_else(wheel: Path) -> None:
    inside = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    devices = {path.replace("profiles/devices/", "mqlab/_devices/") for path in shipped("profiles/devices")}
    assert inside == shipped("mqlab", "kernels/mqlab_kernels") | devices and "mqlab/_devices/h100.toml" in inside


def test_declares_command_and_license(wheel: Path) -> None:
    archive = zipfile.ZipFile(wheel)
    info = next(name for name in archive.namelist() if name.endswith(".dist-info/METADATA")).removesuffix("METADATA")
    assert "mqlab = mqlab.cli:entry" in archive.read(info + "entry_points.txt").decode()
    assert "Apache License" in archive.read(info + "licenses/LICENSE").decode()


def test_works_from_another_directory(installed: Path, tmp_path: Path) -> None:
    code = """
import importlib, json, pkgutil, mqlab, mqlab_kernels
names = [m.name for package in (mqlab, mqlab_kernels) for m in pkgutil.walk_packages(package.__path__, package.__name__ + ".")]
files = [importlib.import_module(name).__file__ for name in names if not name.endswith("__main__")]
print(json.dumps(files))
"""
    environment = {**os.environ, "PYTHONPATH": str(installed)}
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    files = json.loads(done.stdout)
    assert files and all(Path(file).is_relative_to(installed) for file in files)


def test_a_simulated_step_runs_from_another_directory(installed: Path, model_folder: Path, tmp_path: Path) -> None:
    code = f"""
import mqlab.models.devices, mqlab.model.sim as sim
from mqlab.config import EngineConfig
from mqlab.plan import Chunk, Plan
from mqlab.types import SamplingParams
runner = sim.build(EngineConfig(model="sim:{model_folder}@h100"))
chunk = Chunk("one", (5, 6), 0, (0,), True, SamplingParams(temperature=0.0), 0)
print(mqlab.models.devices.shipped_devices(), *map(len, runner.launch(Plan((chunk,))).wait().tokens))
"""
    environment = {**os.environ, "PYTHONPATH": str(installed)}
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [str(installed / "mqlab" / "_devices"), "1"]
