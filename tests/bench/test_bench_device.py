"""The device's benchmark, whole, at sizes for a machine without a GPU; and what it makes of figures."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mqlab.bench.device.jobs import BIG_MODEL, SMALL_MODEL, WANTED_DECODE, WANTED_PREFILL, Job
from mqlab.bench.device.options import PARTS, DeviceConfig
from mqlab.bench.device.plan import Item, plan
from mqlab.bench.device.process import Jobs
from mqlab.bench.device.result import DeviceResult, load_device
from mqlab.bench.device.run import device, main
from mqlab.errors import ConfigError
from mqlab.model.measure.rows import (
    COPY,
    Agreement,
    Bubble,
    Ceiling,
    EngineRate,
    Facts,
    Skip,
    Spread,
    StepTime,
    Swept,
    Timed,
    matmul,
)
from mqlab.wire.spec import Spec

KERNELS = {
    "reshape_cache",
    "paged_decode",
    "prefill_attention",
    "add_rms_norm",
    "rotary",
    "gated",
    "qkv_rope_cache",
    "sample",
    "advance",
    "quantise_rows",
    "int8_gemm",
}
H200 = Facts("cuda", "NVIDIA H200", 139.8, 139.0, 90, 50.0, {"torch": "2.13.0+cu130"})
FULL = {"size": "full"}


@pytest.fixture(scope="module")
def small() -> DeviceResult:
    return device(DeviceConfig(size="small", device="cpu", rounds=1))


def test_every_kernel_agrees_with_its_reference(small: DeviceResult) -> None:
    found = small.of(Agreement)
    assert {row.kernel for row in found} == KERNELS
    assert [row for row in found if not row.ok] == []
    assert {row.dtype for row in found if row.kernel == "paged_decode"} == {"bfloat16", "float32"}


def test_nothing_of_a_run_fails_or_is_left_out(small: DeviceResult) -> None:
    assert [row for row in small.of(Skip) if row.part != "sweep"] == []
    assert {row.kernel for row in small.of(Timed)} == KERNELS
    assert {"copy", "matmul bfloat16", "matmul int8", "launch", "launch and wait"} <= {row.name for row in small.of(Ceiling)}
    assert {row.kernel for row in small.of(Swept)} == {"paged_decode", "prefill_attention"}
    assert {(row.batch, row.mode) for row in small.of(StepTime)} == {(1, "graph"), (4, "graph"), (1, "eager"), (4, "eager")}
    assert [row.planning for row in small.of(Bubble)] == ["plain", "async"]
    assert {row.layout for row in small.of(EngineRate)} == {"sync", "v1"}
    assert all(row.same == 1 for row in small.of(EngineRate)), "on a CPU every layout gives the same tokens"


def test_a_run_without_a_gpu_claims_nothing_but_correctness(small: DeviceResult) -> None:
    states = {goal.figure: goal.state for goal in small.goals}
    assert states.pop("kernels agree with their references") == "reached"
    assert set(states.values()) == {"not measured"} and len(states) == 5
    assert "times mean nothing" in str(small) and "interpreter" in str(small)


def test_a_result_is_shown_written_and_read_back(small: DeviceResult, tmp_path: Path) -> None:
    file = tmp_path / "device.json"
    file.write_text(json.dumps(small.as_record(), allow_nan=False))
    again = load_device(file)
    assert sorted(map(repr, again.rows)) == sorted(map(repr, small.rows))
    assert again.facts == small.facts and [*map(str, again.tables)] == [*map(str, small.tables)]
    assert small.plot()._repr_png_().startswith(b"\x89PNG")
    assert small._repr_html_().count("<table>") == len(small.tables) and "Kernels against their references" in small._repr_html_()
    assert {*small.to_pandas()["kernel"]} == KERNELS


def made(*rows: object, facts: Facts = H200) -> DeviceResult:
    return DeviceResult(facts=facts, rows=rows, workload=FULL)  # pyright: ignore[reportArgumentType]


def at(us: float) -> Spread:
    return Spread(us, us, us, 9)


CEILINGS = (Ceiling(COPY, 4000.0, "GB/s", at(1), ""), Ceiling(matmul("bfloat16"), 700.0, "TFLOP/s", at(1), ""))


@pytest.mark.parametrize(("us", "state"), [(1.0 / 0.851, "reached"), (1.0 / 0.849, "missed")])
def test_decode_is_held_to_the_copy_bandwidth_and_prefill_to_the_product(us: float, state: str) -> None:
    decode = Timed("paged_decode", WANTED_DECODE, "bfloat16", at(us * 1000), 4_000_000_000, 1000, matmul("bfloat16"))
    prefill = Timed("prefill_attention", WANTED_PREFILL, "bfloat16", at(us * 1000 / 0.6 * 0.85), 1000, 700 * 10**9, matmul("bfloat16"))
    found = {goal.figure.partition(",")[0]: goal.state for goal in made(*CEILINGS, decode, prefill).goals}
    assert (found["paged decode"], found["prefill attention"]) == (state, state)


def test_a_step_is_held_to_the_floor_of_its_bytes_and_only_by_graphs() -> None:
    graph = StepTime(BIG_MODEL, 64, 1024, "graph", at(4990.0), 4000.0, 16_000_000_000)
    eager = StepTime(BIG_MODEL, 64, 1024, "eager", at(9000.0), 4000.0, 16_000_000_000)
    goals = [goal for goal in made(*CEILINGS, graph, eager).goals if goal.figure.startswith("decode step")]
    assert [(goal.state, goal.value) for goal in goals] == [("reached", "1.25 x (4.99 ms)")]


@pytest.mark.parametrize(("v1", "state"), [((99.0, 98.0, 100.0), "reached"), ((97.0, 96.0, 97.5), "missed")])
def test_v1_is_held_to_the_plain_loop_of_the_same_model(v1: tuple[float, ...], state: str) -> None:
    rates = [EngineRate(BIG_MODEL, "sync", (100.0, 99.0, 101.0), 5.0, 9.0, 1.0), EngineRate(BIG_MODEL, "v1", v1, 5.0, 9.0, 1.0)]
    states = {goal.figure: goal.state for goal in made(*rates).goals}
    assert states[f"v1 over sync, {BIG_MODEL}"] == state
    assert states[f"v1 over sync, {SMALL_MODEL}"] == "not measured"


def test_a_kernel_that_differs_or_does_not_run_is_named() -> None:
    wrong = Agreement("gated", "8B", "float16", 3.0, False, "tolerated: 0.002")
    lost = Job("correctness", "rotary", 1.0, Spec("a:b", {"kernel": "rotary", "case": "8B", "dtype": "bfloat16"})).failed(
        "it was ended by SIGSEGV"
    )
    result = made(wrong, lost, Agreement("advance", "x", "bfloat16", 0.0, True))
    assert result.goals[0].state == "missed" and result.goals[0].value == "1 of 3; not gated (8B, float16), rotary (8B, bfloat16)"
    assert "SIGSEGV" in str(result) and repr(result).startswith("<device, NVIDIA H200: 1 of 3 uses of kernels right")


def test_the_command_ends_with_a_status_of_its_own_where_a_kernel_is_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for ok, status in ((True, 0), (False, 3)):
        result = made(Agreement("gated", "8B", "float16", 3.0, ok, ""))
        monkeypatch.setattr("mqlab.bench.device.run.device", lambda _, result=result: result)
        assert main(DeviceConfig(output_json=str(tmp_path / "gpu.json"))) == status
        assert load_device(tmp_path / "gpu.json").rows == result.rows
    assert "WRONG" in capsys.readouterr().out


def names(items: list[Item], part: str) -> list[str]:
    return [item.name for item in items if item.part == part]


def test_what_is_wanted_most_comes_first_and_all_of_it_is_told() -> None:
    items = plan(DeviceConfig(), H200, "")
    parts = [item.part for item in items]
    assert {*parts} == {*PARTS}
    assert parts[0] == "ceilings" and parts.index("correctness") < parts.index("steps") < parts.index("engines") < parts.index("sweep")
    assert names(items, "kernels")[:2] == [f"paged_decode, {WANTED_DECODE}, bfloat16", f"prefill_attention, {WANTED_PREFILL}, bfloat16"]
    assert len(items) == len({(item.part, item.name) for item in items}), "each once"
    decodes = [name for name in names(items, "kernels") if name.startswith("paged_decode")]
    assert len(decodes) == 2 * 4 * 3


def test_what_the_device_has_no_room_for_is_told() -> None:
    items = plan(DeviceConfig(), Facts("cuda", "a small GPU", 16.0, 15.5, 80), "")
    skipped = {item.name: item.why for item in items if isinstance(item, Skip)}
    assert {f"{BIG_MODEL}: sync", f"{BIG_MODEL}: v1", f"{BIG_MODEL}, graphs and bubbles"} <= {*skipped}
    assert "GiB" in skipped[f"{BIG_MODEL}: v1"]
    assert any(name.startswith(f"{SMALL_MODEL}: sync") for name in names(items, "engines"))


def test_parts_can_be_chosen_and_the_others_are_told() -> None:
    items = plan(DeviceConfig(parts="ceilings,sweep"), H200, "")
    assert {item.part for item in items if not isinstance(item, Skip)} == {"ceilings", "sweep"}
    assert {item.part for item in items if isinstance(item, Skip)} == {*PARTS} - {"ceilings", "sweep"}
    with pytest.raises(ConfigError, match="--parts='nope'"):
        DeviceConfig(parts="nope")


def test_what_no_time_is_left_for_is_listed_as_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mqlab.bench.device.run._look", lambda *_: H200)
    result = device(DeviceConfig(max_minutes=1e-4))
    assert len(result.rows) == len(plan(DeviceConfig(), H200, "")) and {type(row) for row in result.rows} == {Skip}
    assert all("--max-minutes" in row.why or "room" in row.why for row in result.of(Skip))
    assert {goal.state for goal in result.goals} == {"not measured"}


def test_a_job_that_crashes_hangs_or_fails_costs_no_other() -> None:
    with Jobs() as jobs:
        assert jobs.run(Spec("builtins:list"), 60).rows == []
        assert "SIGABRT" in jobs.run(Spec("os:abort"), 60).error
        assert "not done within 0 s" in jobs.run(Spec("signal:pause"), 0.2).error
        failed = jobs.run(Spec("mqlab.models.devices:device_file", {"name": "no such device"}), 60)
        assert "no such device" in failed.error and not failed.rows
        assert jobs.run(Spec("builtins:list"), 60).error == ""


@pytest.mark.full
@pytest.mark.parametrize(("config", "words"), [({"device": "cpu"}, "--size='full' needs a GPU"), ({"device": "cuda"}, "torch sees no GPU")])
def test_without_a_gpu_what_needs_one_is_refused(config: dict[str, str], words: str) -> None:
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    with pytest.raises(ConfigError, match=words):
        device(DeviceConfig(**config))  # pyright: ignore[reportArgumentType]
