"""lm-eval scores our server and its own transformers backend alike, item by item: the accuracy test of a document behind the layouts."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parent.parent.parent / "scripts" / "accuracy.py"


@pytest.mark.full
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("topology", ["v1", "mq"])
def test_scores_are_those_of_transformers(model_folder: Path, tmp_path: Path, topology: str) -> None:
    """The first time it makes an environment for lm-eval, which takes minutes."""
    output = tmp_path / "accuracy.json"
    command = [sys.executable, SCRIPT, "--items", "3", "--topology", topology, "--output", output]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    arms = json.loads(output.read_text())["arms"]
    assert list(arms) == ["mqlab, 1 at once", "mqlab, 64 at once", "transformers"]
    assert max(arm["largest_difference_nats"] for arm in arms.values()) < 5e-3
