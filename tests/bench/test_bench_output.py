"""What a benchmark leaves, whoever reads what it prints."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from mqlab.bench.output import told, write_output


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


def test_a_file_is_replaced_whole(tmp_path: Path) -> None:
    file = tmp_path / "result.json"
    (tmp_path / "link.json").symlink_to(file)
    for number in range(2):
        write_output(str(tmp_path / "link.json"), {"number": number})
        assert json.loads(file.read_text()) == {"number": number}
    with pytest.raises(TypeError):
        write_output(str(file), {"number": object()})
    assert json.loads(file.read_text()) == {"number": 1}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link.json", "result.json"]


def test_what_is_no_file_is_written_to(tmp_path: Path) -> None:
    os.mkfifo(pipe := tmp_path / "pipe")
    reading = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    write_output(str(pipe), {"number": 3})
    assert json.loads(os.read(reading, 100)) == {"number": 3}
    os.close(reading)
