"""Devices and costs: what their files say, what is refused, and how near the formula comes to measured GPUs."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from mqlab.errors import ModelError
from mqlab.model.cost import ModelCost, Work, step_seconds
from mqlab.model.device import Device, Fit
from mqlab.model.fit import Row, fit, measured_rows
from mqlab.models.devices import device_names, shipped_devices
from mqlab.models.shipped import shipped_config

ROWS = measured_rows()
TOLERANCE = 0.1


def cost_of(name: str, **changes: object) -> ModelCost:
    return ModelCost.of({**json.loads(shipped_config(name)), **changes})


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.device.name}-{row.cost.layer_bytes / 1e9:.0f}GB-{row.work.tokens}")
def test_every_measured_row_is_met_with_one_set_of_parameters(row: Row) -> None:
    assert abs(row.error(Fit())) < TOLERANCE


def test_there_are_forty_rows_of_three_devices() -> None:
    assert len(ROWS) == 40 and {row.device.name for row in ROWS} == {"a100", "a40", "h100"}
    assert {Device.load(name).fit for name in ("a100", "a40", "h100", "h200", "l40s")} == {Fit()}, (
        "the shipped ones have no fit of their own"
    )


@pytest.mark.parametrize("left_out", ["a100", "a40", "h100"])
def test_two_gpus_foretell_the_third(left_out: str) -> None:
    found = fit([row for row in ROWS if row.device.name != left_out])
    errors = [abs(row.error(found)) for row in ROWS if row.device.name == left_out]
    print(f"{left_out}, foretold from the other two: worst {max(errors):.1%}, mean {sum(errors) / len(errors):.1%}")
    assert max(errors) < 0.15 and sum(errors) / len(errors) < 0.07


def test_a_fit_finds_what_made_the_rows() -> None:
    true = Fit(bandwidth_share=0.5, flops_share=0.4, exponent=2.5, step_ms=2.0, sequence_us=40.0)
    made = [replace(row, work=replace(row.work, sequences=1 + row.work.tokens % 7)) for row in ROWS]
    made = [replace(row, seconds=step_seconds(replace(row.device, fit=true), row.cost, row.work)) for row in made]
    found = fit(made, free=("bandwidth_share", "flops_share", "exponent", "step_ms", "sequence_us"), start=Fit(sequence_us=1.0))
    assert max(abs(row.error(found)) for row in made) < 1e-3
    assert found.bandwidth_share == pytest.approx(0.5, rel=0.01) and found.sequence_us == pytest.approx(40.0, rel=0.1)
    with pytest.raises(ValueError, match="3 measurements cannot fix 4 parameters"):
        fit(ROWS[:3])


def test_costs_are_those_of_the_models() -> None:
    llama = cost_of("llama-3.1-8b")
    assert llama.kv_bytes == 128 * 1024
    assert llama.weight_bytes == pytest.approx(2 * 8.03e9, rel=0.001), "8.03 billion parameters"
    assert llama.layer_flops == llama.layer_bytes and llama.head_bytes == 2 * 4096 * 128256
    assert llama.attention_flops == 4 * 32 * 4096
    assert cost_of("llama-3.2-1b").weight_bytes == pytest.approx(2 * 1.236e9, rel=0.001), "its output projection is its embedding"
    assert cost_of("pythia-70m").weight_bytes == pytest.approx(2 * 70.4e6, rel=0.001), "no gate in its MLP, a KV head for each head"
    assert cost_of("pythia-70m").kv_bytes == 2 * 6 * 512 * 2
    config = json.loads(shipped_config("llama-3.1-8b"))
    assert ModelCost.of(config, "float32").weight_bytes == 2 * llama.weight_bytes
    with pytest.raises(ModelError, match="architectures="):
        ModelCost.of({**config, "architectures": ["Mamba2ForCausalLM"]})


def test_a_window_bounds_what_attention_reads() -> None:
    config = json.loads(shipped_config("llama-3.1-8b"))
    mistral = ModelCost.of({**config, "architectures": ["MistralForCausalLM"], "sliding_window": 4096})
    assert (mistral.seen(4000), mistral.seen(5000)) == (4000, 4096)
    assert cost_of("llama-3.1-8b").seen(5000) == 5000


def test_a_step_is_matrices_attention_and_what_the_fit_adds() -> None:
    device = Device(
        name="d",
        bandwidth_tb_s=1.0,
        tflops=1.0,
        memory_gib=1,
        fit=Fit(bandwidth_share=0.5, flops_share=0.25, exponent=1.0, step_ms=1.0, sequence_us=10.0, token_us=1.0, context_ns=2.0),
    )
    cost = ModelCost(
        layer_bytes=10**9, layer_flops=10**9, head_bytes=10**8, head_flops=10**8, weight_bytes=0, kv_bytes=10**6, attention_flops=10**5
    )
    # 1 GB at 0.5 TB/s, 2 tokens of 1 GFLOP at 0.25 TFLOP/s; and the constant.
    assert step_seconds(device, cost, Work(2)) == pytest.approx(2e-3 + 8e-3 + 1e-3 + 2e-6)
    work = Work(tokens=2, sampled=1, sequences=2, context=100, pairs=150)
    attention = 100 * 10**6 / 0.5e12 + 150 * 10**5 / 0.25e12
    added = 1e-3 + 2 * 10e-6 + 2 * 1e-6 + 150 * 2e-9
    assert step_seconds(device, cost, work) == pytest.approx(1.1e9 / 0.5e12 + 2.1e9 / 0.25e12 + attention + added)


def test_the_shipped_devices_say_where_their_facts_are_from() -> None:
    names = {path.stem for path in shipped_devices().glob("*.toml")} - {"measured"}
    assert names == {"a100", "a40", "h100", "h200", "l40s"} <= set(device_names())
    for name in names:
        device = Device.load(name)
        assert device.name == name and len(device.source) > 40 and device.title
        assert Device.load(device.aliases[0]) == device
    assert "second-hand" in Device.load("h200").source


def test_a_device_of_ones_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    device = replace(Device.load("a100"), name="mine", title='a "quoted" \\ title', dtype="float32", fit=Fit(step_ms=3.5, token_us=1e-7))
    path = tmp_path / "mine.toml"
    path.write_text(device.as_toml(), encoding="utf-8")
    assert Device.load(path) == Device.load(str(path)) == device
    monkeypatch.setenv("MQLAB_CACHE", str(tmp_path))
    (tmp_path / "devices").mkdir()
    path.rename(tmp_path / "devices" / "mine.toml")
    assert Device.load("mine") == device and "mine" in device_names()


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("bandwidth_tb_s = 1", "tflops"),
        ("bandwidth_tb_s = 1\ntflops = 'many'\nmemory_gib = 1", "tflops"),
        ("bandwidth_tb_s = -1\ntflops = 1\nmemory_gib = 1", "bandwidth_tb_s=-1.0 must be above 0"),
        ("bandwidth_tb_s = 1\ntflops = 1\nmemory_gib = 1\nspeed = 3", "speed is no field of a device"),
        ("bandwidth_tb_s = 1\ntflops = 1\nmemory_gib = 1\n[fit]\nexponent = 0.5", "exponent=0.5 must be at least 1"),
        ("bandwidth_tb_s = 1\ntflops = 1\nmemory_gib = 1\n[fit]\nbandwith_share = 0.5", "bandwith_share is no field"),
        ("fit = 3", "fit"),
        ("= 1", "cannot be read as TOML"),
    ],
)
def test_a_wrong_file_is_told(text: str, told: str, tmp_path: Path) -> None:
    path = tmp_path / "wrong.toml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ModelError, match=told):
        Device.load(path)


@pytest.mark.parametrize("name", ["h1000", "measured", "", "../a100", "no/such.toml"])
def test_an_unknown_device_is_told_with_those_that_there_are(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MQLAB_CACHE", str(tmp_path))  # the user's own devices are named as well
    with pytest.raises(ModelError, match=r"a100, a40, h100, h200, l40s"):
        Device.load(name)
