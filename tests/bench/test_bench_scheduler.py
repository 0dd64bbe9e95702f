"""The scheduler's benchmark: which cores are timed, and what is told of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from mqlab.bench.scheduler import main, scheduler
from mqlab.bench.scheduler_options import SchedulerConfig
from mqlab.bench.scheduler_result import Row, SchedulerResult
from mqlab.config import EngineConfig
from mqlab.errors import ConfigError

SMALL: dict[str, Any] = {"running": "1,5", "waiting": "0,3", "steps": 4, "num_iters_warmup": 1, "num_iters": 2}
SIZES = [(1, 0), (1, 3), (5, 0), (5, 3)]


@pytest.mark.parametrize("engine", [{}, {"async_scheduling": True, "num_scheduler_steps": 4}, {"num_speculative_tokens": 2}])
def test_every_number_of_running_and_waiting_is_timed_for_both_kinds(engine: dict[str, Any]) -> None:
    result = scheduler(EngineConfig(**engine), SchedulerConfig(**SMALL))
    assert [(row.kind, row.running, row.waiting) for row in result.rows] == [
        (kind, *size) for kind in ("plain", "steering") for size in SIZES
    ]
    assert all(row.schedule_us > 0 and row.output_us > 0 for row in result.rows)


def test_it_prints_a_table_and_writes_a_record(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "scheduler.json"
    assert main(EngineConfig(), SchedulerConfig(output_json=str(file), **SMALL)) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "medians of 2 rounds of 4 steps" in lines[0]
    assert lines[1].split() == ["requests", "running", "waiting", "schedule", "µs", "output", "µs", "step", "µs", "per", "running"]
    record = json.loads(file.read_text())
    assert [line.split()[:3] for line in lines[2:10]] == [[row["kind"], str(row["running"]), str(row["waiting"])] for row in record["rows"]]
    assert record["workload"] == SMALL
    assert record["rows"][3]["us_per_running"] == pytest.approx(record["rows"][3]["step_us"] / 5)


def test_a_result_can_be_looked_at() -> None:
    rows = (Row("plain", 4, 0, 5.0, 3.0), Row("plain", 8, 0, 10.0, 6.0), Row("steering", 8, 10, 20.0, 8.0))
    result = SchedulerResult(rows=rows, workload=SMALL)
    assert repr(result) == "<scheduler: 3.50 µs a step and request with 8 running>"
    assert result.to_pandas()["step_us"].tolist() == [8, 16, 28]
    assert "16.0 µs a step, 2.00 µs for each that runs" in result._repr_html_()
    assert result.plot()._repr_png_().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"running": "0"}, "--running='0' must hold numbers of at least 1"),
        ({"running": "many"}, "--running='many' must be whole numbers with commas"),
        ({"waiting": "1,,2"}, "--waiting='1,,2' must be whole numbers"),
        ({"steps": 0}, "--steps=0 must be at least 1"),
        ({"num_iters": 0}, "--num-iters=0 must be at least 1"),
        ({"num_iters_warmup": -1}, "--num-iters-warmup=-1 must be at least 0"),
    ],
)
def test_sizes_that_make_no_sense_are_refused(wrong: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        SchedulerConfig(**wrong)
