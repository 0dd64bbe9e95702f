"""What every test gets: a quiet environment of its own, and a check that it leaves nothing behind."""

from __future__ import annotations

import gc
import os
import re
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

# Before anything imports torch, here or in a child: idle OpenMP threads must not spin on a shared core.
os.environ["GOMP_SPINCOUNT"] = "1000"
os.environ["OMP_NUM_THREADS"] = "1"
# Before anything imports triton: kernels run in its interpreter here. A test that compiles starts a process without it.
os.environ["TRITON_INTERPRET"] = "1"
# Without bytecode each of a thousand engines would compile the package anew, and so would each worker the tests.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

import pytest
from hypothesis import HealthCheck, settings
from leftovers import Snapshot, snapshot

from mqlab.contract import MODULES
from mqlab.contract.waiting import until_sync

sys.dont_write_bytecode = False
pytest.register_assert_rewrite(*MODULES)

# A suite started in the background inherits SIGINT as ignored, and so would every process that it starts and interrupts.
signal.signal(signal.SIGINT, signal.default_int_handler)

# How long an example takes to draw or to run says how busy the machine is.
settings.register_profile("mqlab", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("mqlab")

SETTLE_S = 3.0


def pytest_configure(config: pytest.Config) -> None:
    """Give the session a short runtime folder: the path of an ipc socket must stay under 107 bytes."""
    runtime = Path(tempfile.mkdtemp(prefix="mq-", dir="/tmp"))
    os.environ["MQLAB_RUNTIME"] = str(runtime)
    if not re.match(r"gpu\b", config.option.markexpr):  # engines stay on the CPU, where the same is tested on every machine
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    config.add_cleanup(lambda: shutil.rmtree(runtime, ignore_errors=True))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Keep tests that share a fixture of their module in one worker."""
    from grouping import ByModule

    return ByModule(config, log)


def pytest_collection_finish() -> None:
    """Keep the collector away from modules and tests, which stay: looking through them takes longer than most tests that collect."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def runtime_dir() -> Path:
    """Where sockets of this session go."""
    return Path(os.environ["MQLAB_RUNTIME"])


@pytest.fixture(scope="session")
def model_folder() -> Path:
    """The default model, fetched and converted the first time."""
    from mqlab.config import Settings
    from mqlab.models.resolve import resolve

    return resolve("smollm2-135m", Settings.read().cache_dir)


@pytest.fixture(autouse=True)
def leaves_nothing(runtime_dir: Path) -> Iterator[None]:
    """Fail a test that leaves a process, a thread or a file; what its wider fixtures started before it does not count."""
    before = snapshot(runtime_dir)
    yield
    left = _left_after_settling(runtime_dir, before)
    if left:
        pytest.fail("left behind:\n  " + "\n  ".join(left), pytrace=False)


def _left_after_settling(runtime: Path, before: Snapshot) -> list[str]:
    """What is still there once things that are ending had time to end."""
    try:
        until_sync(lambda: not snapshot(runtime).new_since(before), timeout=SETTLE_S)
    except TimeoutError:
        return snapshot(runtime).new_since(before)
    return []
