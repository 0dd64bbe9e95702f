"""``mqlab bench calibration``: real and simulated beside each other, and what is said of the two."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from small_model import write_small_model

from mqlab import cli
from mqlab.bench import agreement as module
from mqlab.bench.agreement import agreement
from mqlab.bench.agreement_options import WORKLOADS, AgreementConfig, Workload
from mqlab.bench.agreement_result import Agreement, Rounds
from mqlab.bench.arm_run import DeviceUse, Run
from mqlab.bench.compare_options import Lengths
from mqlab.config import EngineConfig
from mqlab.errors import BenchError, ConfigError, ModelError
from mqlab.model.device import Device

WORKLOAD = Workload("2 requests of 8/4", 2, 8, 4)


def run_of(speed: float, tpot_ms: float, *, foreign: float = 0.0, late: float = 0.0) -> Run:
    return Run(
        elapsed_s=1.0,
        output_tokens=8,
        output_tokens_per_s=speed,
        steady_tokens_per_s=speed,
        ttft_ms=1.0,
        tpot_ms=tpot_ms,
        cpu_us_per_token=1.0,
        cpu={"front": 0.1},
        foreign=foreign,
        outputs=["a", "b"],
        device=DeviceUse(busy_s=1.0, oversleep_s=late),
    )


def agreement_of(speeds: list[float], tpots: list[float], **beside: float) -> Agreement:
    """Of a simulated device with these figures, by round, to a real engine with 100 tokens/s and 10 ms."""
    real = [run_of(100, 10, foreign=beside.get("foreign", 0.0)) for _ in speeds]
    simulated = [run_of(speed, tpot, **beside) for speed, tpot in zip(speeds, tpots, strict=True)]
    return Agreement([Rounds(WORKLOAD, real, simulated)], AgreementConfig(), {"seed": 1})


def test_what_agrees_is_said_to() -> None:
    found = agreement_of([98, 100, 102, 99, 101], [10, 10.1, 9.9, 10.2, 10])
    assert found.agrees and found.warnings == []
    assert found.finding == (
        "simulated and real agree within 10%, intervals included: "
        "new tokens/s 1.00× to 1.00×, median time per output token, ms 1.00× to 1.00×"
    )
    assert [row.surely for row in found.rows] == [True, True]


def test_what_agrees_by_chance_is_told_apart() -> None:
    found = agreement_of([80, 95, 97, 99, 120], [10] * 5)
    assert found.agrees
    assert "intervals included, in 1 of 2 rows" in found.finding


def test_what_does_not_agree_is_named_with_its_interval() -> None:
    found = agreement_of([100] * 5, [12, 12.1, 12.2, 12.3, 12.4])
    assert not found.agrees
    assert found.finding == (
        "simulated and real differ by more than 10%: 2 requests of 8/4: median time per output token, ms 1.22× [1.20–1.24]"
    )
    assert str(found).count("too far") == 1


def test_a_late_device_voids_and_others_on_the_machine_cast_doubt() -> None:
    assert "void: the simulated device was late by 20.0% or more" in agreement_of([100] * 5, [10] * 5, late=0.2).finding
    doubtful = agreement_of([100] * 5, [10] * 5, foreign=0.5)
    assert doubtful.agrees and doubtful.finding.startswith("doubtful: simulated and real agree")


def test_a_result_can_be_looked_at() -> None:
    found = agreement_of([98, 100, 102, 99, 101], [10] * 5)
    record = json.loads(json.dumps(found.as_record()))
    assert record["agrees"] is True and record["oversleep"] == 0
    assert [row["metric"] for row in record["rows"]] == ["output_tokens_per_s", "tpot_ms"]
    assert record["runs"][0]["simulated"][0]["output_tokens_per_s"] == 98
    assert found.to_pandas()["ratio"].tolist() == [1.0, 1.0]
    assert "real 100.00, simulated 100.00: 1.00× [0.98–1.02]" in found._repr_html_()
    assert repr(found).startswith("<agreement: simulated and real agree")
    assert pickle.loads(pickle.dumps(found)).finding == found.finding, "a notebook gets it from another process"
    assert found.plot()._repr_png_().startswith(b"\x89PNG")


def test_workloads_are_of_one_and_many_of_short_and_long_at_once_and_as_they_arrive() -> None:
    assert {one.num_prompts for one in WORKLOADS} >= {1, 8, 32}
    assert {one.input_len for one in WORKLOADS} >= {64, 256}
    assert any(one.rate and one.lengths != "fixed" for one in WORKLOADS)


@pytest.fixture
def small(model_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A small model with a short workload and a device; the workload is as small."""
    monkeypatch.setattr(module, "WORKLOADS", (WORKLOAD,))
    device = Device(name="d", bandwidth_tb_s=0.02, tflops=0.1, memory_gib=1.0, dtype="float32")
    (tmp_path / "d.toml").write_text(device.as_toml())
    return write_small_model(tmp_path / "small", model_folder)


def test_a_command_runs_both_in_turns(small: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, device = tmp_path / "r.json", tmp_path / "d.toml"
    argv = ["bench", "calibration", "--model", str(small), "--device", str(device), "--topology", "inproc", "--num-threads", "1"]
    assert cli.main([*argv, "--num-kv-blocks", "64", "--quick", "--output-json", str(file)]) in (0, 3)
    shown = capsys.readouterr()
    record = json.loads(file.read_text())
    assert record["finding"] in shown.out
    assert "6/6" in shown.err
    (runs,) = record["runs"]
    assert len(runs["real"]) == len(runs["simulated"]) == 3
    assert all(run["output_tokens"] == 8 for run in (*runs["real"], *runs["simulated"]))
    assert all(run["device"]["busy_s"] > 0 for run in runs["simulated"])
    assert not any(run["device"]["busy_s"] for run in runs["real"])


@pytest.mark.parametrize("lengths", ["fixed", "sharegpt"])
async def test_too_few_tokens_are_no_result(lengths: Lengths) -> None:
    class Short:
        label = "real"

        async def run(self, work: Any) -> Run:
            return run_of(100, 10)

    work = module._work(Workload("w", 3, 8, 4, lengths), 0)
    with pytest.raises(BenchError, match="'real' gave 8 tokens where 3 requests wanted 12"):
        await module._checked(Short(), work)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(
    ("run", "error", "message"),
    [
        (lambda: agreement(EngineConfig(model="echo"), AgreementConfig()), ConfigError, "--model='echo' is no real engine"),
        (lambda: agreement(EngineConfig(model="sim:pythia-70m@h100"), AgreementConfig()), ConfigError, "is no real engine"),
        (lambda: agreement(EngineConfig(), AgreementConfig(device="nosuch")), ModelError, "no device is known as 'nosuch'"),
        (lambda: AgreementConfig(rounds=2), ConfigError, "--rounds=2 must be at least 3"),
        (lambda: AgreementConfig(scale=0.0), ConfigError, "--scale=0.0 must be above 0"),
    ],
)
def test_what_cannot_be_compared_is_refused(run: Callable[[], object], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        run()
