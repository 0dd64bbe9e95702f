"""``mqlab calibrate``: which steps are timed, what is fitted to them, and what comes of it."""

from __future__ import annotations

import json
import pickle
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_model import write_small_model

from mqlab import cli
from mqlab.bench.calibrate import calibrate
from mqlab.bench.calibrate_fit import Timed, fit_device, timed_of
from mqlab.bench.calibrate_options import CalibrateConfig
from mqlab.bench.calibrate_result import Calibration, rows_of
from mqlab.bench.calibrate_steps import Part, Step, filling, plan_of, steps_for
from mqlab.bench.cpu import CpuReport
from mqlab.config import EngineConfig
from mqlab.errors import ConfigError
from mqlab.model.cost import ModelCost, step_seconds
from mqlab.model.device import Device, Fit
from mqlab.models.shipped import shipped_config
from mqlab.types import ModelInfo

INFO = ModelInfo(name="m", vocab_size=50304, max_model_len=2048, max_prompt_len=2047, num_blocks=4096, block_size=16)
COST = ModelCost.of(json.loads(shipped_config("pythia-70m")), "float32")


def device_with(fit: Fit, gb_s: float, gflops: float) -> Device:
    return Device(name="d", bandwidth_tb_s=gb_s / 1e3, tflops=gflops / 1e3, memory_gib=8.0, dtype="float32", fit=fit)


def on(device: Device, steps: Sequence[Step] | None = None, *, spread: float = 0.0) -> list[Timed]:
    """The steps as a device takes them, each timed thrice, give or take ``spread``."""
    draw = random.Random(0)
    empty = timed_of({step: [] for step in steps or steps_for(INFO, 8192)}, INFO, COST)

    def times(one: Timed) -> tuple[float, ...]:
        exact = step_seconds(device, COST, one.work)
        return tuple(exact * (1 + draw.uniform(-spread, spread)) for _ in range(3))

    return [replace(one, seconds=times(one)) for one in empty]


def errors(found: Device, timed: Sequence[Timed]) -> list[float]:
    return [abs(row.error) for row in rows_of(timed, found, COST)]


# --- the steps


@given(st.integers(1, 4096), st.integers(2, 2048), st.integers(256, 8192))
def test_steps_fit_the_model_and_its_cache(num_blocks: int, max_len: int, most: int) -> None:
    info = ModelInfo(name="m", vocab_size=9, max_model_len=max_len, max_prompt_len=max_len - 1, num_blocks=num_blocks, block_size=16)
    steps = steps_for(info, most)
    assert len(set(steps)) == len({step.name for step in steps}) == len(steps)
    for step in steps:
        assert max(part.end for part in step.parts) <= max_len - 1 and step.cached <= most
        blocks = [block for chunk in plan_of(step, info, random.Random(0)).chunks for block in chunk.blocks]
        assert sorted(blocks) == list(range(len(blocks))) and len(blocks) <= num_blocks


def test_steps_are_of_every_kind() -> None:
    steps = steps_for(INFO, 8192)
    assert {part.sequences for step in steps for part in step.parts if part.tokens == 1} == {1, 2, 4, 8, 16, 32, 64}
    assert {step.tokens for step in steps if len(step.parts) == 1 and step.parts[0].start == 0} >= {16, 64, 256, 1024}
    names = [step.name for step in steps]
    assert {"1 decode at 32", "1 prompt of 256 behind 512", "16 prompts of 64", "8 decode at 256, 1 prompt of 64"} <= set(names)


def test_a_plan_is_what_its_step_says() -> None:
    plan = plan_of(Step((Part(2, 1, 255), Part(1, 64, 0))), INFO, random.Random(0))
    assert [(chunk.start, len(chunk.tokens), len(chunk.blocks)) for chunk in plan.chunks] == [(255, 1, 16), (255, 1, 16), (0, 64, 4)]
    assert [chunk.params.greedy for chunk in plan.chunks] == [True, False, True]
    assert len(plan.sampling) == 3


@pytest.mark.parametrize("budget", [64, 1000, 9999])
def test_every_block_of_the_largest_step_is_written_before_it_is_timed(budget: int) -> None:
    largest = Step((Part(8, 1, 999),))
    plans = list(filling(largest, INFO, random.Random(0), budget))
    chunks = [chunk for plan in plans for chunk in plan.chunks]
    assert [block for chunk in chunks for block in chunk.blocks] == list(range(largest.blocks(16)))
    assert all(len(chunk.tokens) == 16 * len(chunk.blocks) and chunk.end <= min(budget, INFO.max_model_len) for chunk in chunks)


# --- the fit


@settings(max_examples=8, deadline=None)
@given(
    st.floats(10, 60),
    st.floats(50, 400),
    st.builds(
        Fit,
        bandwidth_share=st.just(1.0),
        flops_share=st.just(1.0),
        exponent=st.floats(1.1, 2.5),
        step_ms=st.floats(0.1, 3),
        sequence_us=st.floats(5, 200),
        context_ns=st.floats(10, 500),
        cached_ns=st.floats(10, 1000),
        crowd_ns=st.floats(1, 300),
    ),
)
def test_a_fit_finds_the_device_that_took_the_times(gb_s: float, gflops: float, fit: Fit) -> None:
    true = device_with(fit, gb_s, gflops)
    found = fit_device(on(true), COST, "float32", 8.0)
    assert found.fit.bandwidth_share == found.fit.flops_share == 1
    assert max(errors(found, on(true))) < 0.02
    unseen = [Step((Part(12, 1, 400),)), Step((Part(1, 128, 128),)), Step((Part(24, 1, 99), Part(3, 100, 0)))]
    assert max(errors(found, on(true, unseen))) < 0.03
    assert found.tflops == pytest.approx(true.tflops, rel=0.1)


def test_a_fit_to_times_that_scatter_comes_close() -> None:
    true = device_with(
        Fit(bandwidth_share=1.0, flops_share=1.0, exponent=1.2, step_ms=1.0, sequence_us=50, context_ns=100, cached_ns=300), 25, 150
    )
    found = fit_device(on(true, spread=0.05), COST, "float32", 8.0)
    assert max(errors(found, on(true))) < 0.05


def test_what_the_steps_do_not_tell_stays_in_bounds() -> None:
    timed = [replace(one, seconds=(0.004,)) for one in on(device_with(Fit(), 25, 150))]
    found = fit_device(timed, COST, "float32", 8.0)
    assert found.fit.exponent <= 6
    assert found.bandwidth_tb_s * 1e12 <= 10.001 * COST.layer_bytes / 0.004


# --- the result


def result_of(device: Device, timed: Sequence[Timed], file: str = "/x/d.toml", foreign: float = 0.0) -> Calibration:
    cpu = CpuReport(1.0, 2, {"self": 1.0}, foreign)
    return Calibration(device=device, file=file, rows=rows_of(timed, device, COST), engine={"model": "m", "num_threads": 2}, cpu=cpu)


def test_a_good_calibration_has_no_warnings() -> None:
    device = device_with(Fit(bandwidth_share=1.0, flops_share=1.0), 25, 150)
    good = result_of(device, on(device))
    assert good.warnings == [] and good.typical_error < 1e-9
    assert "reached 25 GB/s and 150 GFLOP/s in float32" in str(good)
    assert "sim:m@/x/d.toml runs at this speed" in str(good) and "sim:m@/x/d.toml" in good._repr_html_()
    assert len(good.to_pandas()) == len(good.rows)
    assert pickle.loads(pickle.dumps(good)) == good, "a notebook gets it from another process"
    assert good.plot()._repr_png_().startswith(b"\x89PNG")
    assert json.loads(json.dumps(good.as_record()))["rows"][0]["step"] == "1 decode at 32"


def test_a_bad_one_says_what_is_wrong_with_it() -> None:
    device = device_with(Fit(bandwidth_share=1.0, flops_share=1.0), 25, 150)
    timed = [replace(one, seconds=tuple(second * (2 if one.work.tokens > 99 else 1) for second in one.seconds)) for one in on(device)]
    fit, scatter, foreign = (
        result_of(device, timed).warnings,
        result_of(device, on(device, spread=0.9)).warnings,
        result_of(device, on(device), foreign=0.4).warnings,
    )
    assert "the fit is off by" in fit[0] and "run it again when nothing else runs, or with one thread less" in fit[0]
    assert "more or less from one time to the next" in scatter[-1]
    assert "other programs used 40% of this machine" in foreign[0]


# --- the command


@pytest.fixture
def small(model_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A small model, and a cache of its own for what comes of it."""
    folder = write_small_model(tmp_path / "small", model_folder, vocab_size=49152)
    monkeypatch.setenv("MQLAB_CACHE", str(tmp_path / "cache"))
    return folder


def test_a_command_makes_a_device_that_the_simulator_finds(small: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    record = tmp_path / "calibration.json"
    argv = ["calibrate", "--model", str(small), "--quick", "--num-threads", "1", "--name", "mine", "--output-json", str(record)]
    assert cli.main(argv) == 0
    shown = capsys.readouterr().out
    found = json.loads(record.read_text())
    device = Device.load("mine")
    assert device == Device.load(tmp_path / "cache" / "devices" / "mine.toml")
    assert found["device"]["bandwidth_tb_s"] == device.bandwidth_tb_s
    assert device.dtype == "float32" and device.title.endswith(", 1 thread") and "with small in float32" in device.source
    assert all(row["least_ms"] <= row["median_ms"] <= row["most_ms"] for row in found["rows"])
    assert f"sim:{small}@mine runs at this speed" in shown


def test_a_file_of_ones_own_is_written(small: Path, tmp_path: Path) -> None:
    file = tmp_path / "there.toml"
    config = CalibrateConfig(quick=True, context_tokens=256, output=str(file))
    result = calibrate(EngineConfig(model=str(small), num_threads=1, num_kv_blocks=40), config)
    assert Device.load(file) == result.device
    assert result.device.name == "there"
    assert not (tmp_path / "cache" / "devices").exists()


@pytest.mark.parametrize(
    ("engine", "config", "message"),
    [
        ({"model": "echo"}, {}, "--model='echo' computes nothing that could be timed"),
        ({"model": "sim:pythia-70m@h100"}, {}, "computes nothing that could be timed"),
        ({}, {"output": "/nowhere/at/all.toml"}, "--output='/nowhere/at/all.toml': its folder does not exist"),
        ({"num_kv_blocks": 4}, {}, "only 3 kinds of steps fit 4 KV blocks"),
    ],
)
def test_what_cannot_be_calibrated_is_refused(small: Path, engine: dict[str, Any], config: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        calibrate(EngineConfig(**{"model": str(small), **engine}), CalibrateConfig(**config))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"name": "My GPU"}, "--name='My GPU' must be of lower-case letters"),
        ({"name": "measured"}, "--name='measured' is a file of measurements"),
        ({"output": "here.json"}, "--output='here.json' must end in .toml"),
        ({"rounds": 2}, "--rounds=2 must be at least 3"),
        ({"context_tokens": 100}, "--context-tokens=100 must be at least 256"),
    ],
)
def test_settings_are_checked(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        CalibrateConfig(**wrong)
