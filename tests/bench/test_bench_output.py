"""What a benchmark leaves, whoever reads what it prints."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from mqlab.bench.output import told


class Result:
    def as_record(self) -> Mapping[str, Any]:
        return {"tokens": 3}


def test_a_result_is_on_disk_before_it_is_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """``| head`` ends the pipe, and with it the command."""
    reading, writing = os.pipe()
    os.close(reading)
    with pytest.raises(BrokenPipeError), os.fdopen(writing, "w", buffering=1) as gone:
        monkeypatch.setattr("sys.stdout", gone)
        told(Result, str(tmp_path / "result.json"))
    assert json.loads((tmp_path / "result.json").read_text()) == {"tokens": 3}
