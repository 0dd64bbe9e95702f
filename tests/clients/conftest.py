"""Servers as users start them, each in a process of its own: ``mqlab serve`` and nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from serving import Process, mqlab_command, running


@contextmanager
def serve(folder: Path, *arguments: str) -> Iterator[Process]:
    """``mqlab serve`` on a free port while the block runs."""
    with running(mqlab_command("serve", *arguments, "--port", "0", "--no-record", "--drain-timeout", "1"), folder) as process:
        yield process.wait_ready()
        assert process.stop(15) == 0


@pytest.fixture(scope="module")
def echo(model_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    """Answers a prompt with the prompt."""
    del model_folder  # fetched before the clock of a test runs
    with serve(tmp_path_factory.mktemp("echo"), "echo") as process:
        yield process


@pytest.fixture(scope="module")
def smollm(model_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    """The default model."""
    del model_folder
    with serve(tmp_path_factory.mktemp("smollm"), "smollm2-135m", "--enforce-eager", "--max-num-seqs", "8") as process:
        yield process
