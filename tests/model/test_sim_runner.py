"""The simulated device: its time is a timeline, its memory is that of the device, and its names work like any model's."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from simulated import device_of, gained, sim_core, sim_runner, write_device

from mqlab.clock import MonotonicClock, VirtualClock
from mqlab.config import EngineConfig, Settings
from mqlab.engine.core import step
from mqlab.errors import CallError, ConfigError, ModelError
from mqlab.model import either
from mqlab.model.cost import ModelCost, Work, step_seconds
from mqlab.model.sim import build, foresee
from mqlab.model.sim_work import rounds_of
from mqlab.models.resolve import resolve
from mqlab.notes import notes_of
from mqlab.plan import Chunk, Plan
from mqlab.text.tokenizer import Tokenizer
from mqlab.types import Call, Model, ModelInfo, Reply, Request, SamplingParams
from mqlab.wire.wiring import Wiring

MS = 1_000_000
GREEDY = SamplingParams(temperature=0.0)


def chunk(length: int = 1, start: int = 5, samples: bool = True, rounds: int = 1) -> Chunk:
    return Chunk("a", tuple(range(length)), start, tuple(range(8)), samples, GREEDY, 0, rounds=rounds)


def info_of(model: str, **config: Any) -> ModelInfo:
    return foresee(EngineConfig(model=model, **config)).info


def test_steps_in_flight_end_one_after_the_other() -> None:
    clock = VirtualClock()
    runner = sim_runner(clock)
    first, second = runner.launch(Plan((chunk(),))), runner.launch(Plan((chunk(start=6),)))
    assert clock.now_ns() == 0, "a launch takes no time"
    assert (first.end_ns, second.end_ns) == (10 * MS, 20 * MS)
    assert first.wait().device_ns == 10 * MS and clock.now_ns() == 10 * MS
    clock.advance(5 * MS)  # the second one runs meanwhile
    second.wait()
    assert clock.now_ns() == 20 * MS
    clock.advance(7 * MS)
    runner.launch(Plan((chunk(),))).wait()
    assert clock.now_ns() == 37 * MS, "an idle device begins when it is told to"


def test_each_round_takes_its_time() -> None:
    clock = VirtualClock()
    runner = sim_runner(clock)
    sampled = runner.launch(Plan((chunk(rounds=4), chunk(rounds=2)))).wait()
    assert [len(tokens) for tokens in sampled.tokens] == [4, 2]
    assert (sampled.device_ns, clock.now_ns()) == (40 * MS, 40 * MS)


def test_the_work_of_a_plan() -> None:
    cost = ModelCost(layer_bytes=1, layer_flops=1, head_bytes=1, head_flops=1, weight_bytes=1, kv_bytes=1, attention_flops=1)
    decodes = [chunk(start=5), chunk(start=7)]
    assert rounds_of(Plan(tuple(decodes)), cost) == [Work(tokens=2, sampled=2, sequences=2, context=6 + 8, pairs=6 + 8)]
    prompts = [chunk(4, start=0), chunk(3, start=2, samples=False)]
    # Of 4 tokens the first sees 1 and the last 4; of 3 behind 2 others, 3 to 5.
    assert rounds_of(Plan(tuple(prompts)), cost) == [Work(tokens=7, sampled=1, sequences=2, context=4 + 5, pairs=10 + 12)]
    rounds = rounds_of(Plan((chunk(rounds=3), chunk(start=7, rounds=2))), cost)
    assert rounds[1:] == [Work(2, 2, 2, 7 + 9, 7 + 9), Work(1, 1, 1, 8, 8)]
    guess = Chunk("a", (1, 2, 3), 5, (0, 1), True, GREEDY, 0, drafts=2)
    assert rounds_of(Plan((guess,)), cost) == [Work(tokens=3, sampled=3, sequences=1, context=8, pairs=6 + 7 + 8)]
    windowed = replace(cost, windows=((4, 0.5),))
    assert rounds_of(Plan((chunk(start=7),)), windowed) == [Work(1, 1, 1, (8 + 4) / 2, (8 + 4) / 2)]


def test_time_that_was_overslept_is_counted() -> None:
    class Late(VirtualClock):
        def sleep_until(self, ns: int) -> int:
            super().sleep_until(ns + 3 * MS)
            return 3 * MS

    core = sim_core(Late())
    core.add(Request("a", [1, 2], SamplingParams(max_tokens=4, ignore_eos=True)))
    gained(core)
    stats = core.calls["stats"]()
    assert (stats.device_us, stats.oversleep_us) == (4 * 10_000, 4 * 3_000)


def test_the_machines_clock_sleeps_and_knows_how_well() -> None:
    clock = MonotonicClock()
    now = clock.now_ns()
    late = clock.sleep_until(now + 2 * MS)
    assert clock.now_ns() >= now + 2 * MS + late and late >= 0
    assert clock.sleep_until(now) == 0, "the time has passed"


def test_kv_blocks_are_what_the_memory_holds() -> None:
    found = foresee(EngineConfig(model="sim:llama-3.1-8b@h100"))
    assert (found.info.dtype, found.info.max_model_len, found.info.vocab_size, found.info.hidden_size) == ("bfloat16", 131072, 128256, 4096)
    held = found.info.num_blocks * 16 * 128 * 1024
    left = 80 * 0.9 * 2**30 - found.cost.weight_bytes
    assert left - 2 * 2**30 < held < left - 0.5 * 2**30, "beside the weights, a reserve"
    more = info_of("sim:llama-3.1-8b@h100", gpu_memory_utilization=0.95).num_blocks - found.info.num_blocks
    assert more == pytest.approx(80 * 0.05 * 2**30 / (16 * 128 * 1024), abs=1)
    assert info_of("sim:llama-3.1-8b@h200").num_blocks > found.info.num_blocks > info_of("sim:llama-3.1-8b@a40").num_blocks
    assert info_of("sim:llama-3.1-8b@h100", num_kv_blocks=77).num_blocks == 77
    assert info_of("sim:llama-3.1-8b@h100", max_model_len=4096).max_model_len == 4096
    assert info_of("sim:llama-3.1-8b@h100", dtype="float32").num_blocks < found.info.num_blocks / 2
    assert info_of("sim:llama-3.1-8b@h100", max_num_batched_tokens=65536).num_blocks < found.info.num_blocks, "activations of longer steps"


def test_a_model_that_does_not_fit_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"needs 15\.\d GiB .* a40 gives 0.3 of its 45 GiB.*--gpu-memory-utilization"):
        info_of("sim:llama-3.1-8b@a40", gpu_memory_utilization=0.3)
    with pytest.raises(ConfigError, match="--max-model-len=4096"):
        info_of("sim:pythia-70m@h100", max_model_len=4096)


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("sim:llama-3.1-8b", "names no device; write sim:<model>@<device>, .* a100, a40"),
        ("sim:llama-3.1-8b@", "names no device"),
        ("sim:@h100", "names no model"),
        ("sim:llama-3.1-8b@h1000", "no device is known as 'h1000'; pass one of a100"),
        ("sim:llama-9@h100", "no model is known as 'llama-9'.*llama-3.1-8b"),
        ("sim:./none@h100", "no folder or file at './none'"),
        ("sim:llama-3.1-8b@./none.toml", "no device file at './none.toml'"),
    ],
)
def test_wrong_names_are_told(name: str, told: str) -> None:
    cache = Settings.read().cache_dir
    for find in (lambda: resolve(name, cache), lambda: either.foresee(EngineConfig(model=name)), lambda: build(EngineConfig(model=name))):
        with pytest.raises(ModelError, match=told):
            find()


def test_a_folder_on_a_device_of_ones_own(model_folder: Path, tmp_path: Path) -> None:
    name = f"sim:{model_folder}@{write_device(tmp_path, 7.0)}"
    clock = VirtualClock()
    runner = build(EngineConfig(model=name, max_model_len=64, num_kv_blocks=8), clock)
    runner.launch(Plan((chunk(),))).wait()
    assert runner.info.path == str(model_folder) and runner.info.name == name
    assert clock.now_ns() == 7 * MS
    assert notes_of(EngineConfig(model=name, gpu_memory_utilization=0.5)) == (), "it is heeded here"


def test_the_text_is_english_and_documents_end() -> None:
    runner = build(EngineConfig(model="sim:llama-3.2-1b@a100"), VirtualClock())
    tokenizer = Tokenizer.load(Path(runner.info.path))
    core_text = tokenizer.decode(list(runner._text))
    assert core_text.count(" the ") > 1000 and "�" not in core_text
    assert set(runner.info.eos_token_ids) & set(runner._text), "each document ends with the end token"


def test_torch_stays_out() -> None:
    code = """
import sys
import mqlab.model.either, mqlab.model.sim, mqlab.bench.capacity
from mqlab.config import EngineConfig
from mqlab.wire.wiring import Wiring
core = Wiring.of(EngineConfig(model="sim:pythia-70m@h100")).build_core()
core.close()
sys.exit("torch" in sys.modules)
"""
    assert subprocess.run([sys.executable, "-c", code], timeout=100).returncode == 0


def test_rest_resume_and_close() -> None:
    runner = sim_runner(VirtualClock())
    said = runner.launch(Plan((chunk(3, start=0),))).wait().tokens
    runner.rest()
    with pytest.raises(RuntimeError, match="no KV memory"):
        runner.launch(Plan((chunk(),)))
    runner.resume()
    assert runner.launch(Plan((chunk(3, start=0),))).wait().tokens == said
    runner.close()
    with pytest.raises(RuntimeError, match="no KV memory"):
        runner.launch(Plan((chunk(),)))


def test_one_engine_loads_simulated_models_and_lets_them_sleep(tmp_path: Path) -> None:
    config = EngineConfig(model=f"sim:pythia-70m@{write_device(tmp_path, 0.1)}")
    core = Wiring.of(config).build_core()

    def call(method: str, *args: object) -> object:
        events = core.call(Call(1, method, args))
        while core.has_work:
            events += step(core)
        reply = next(event for event in events if isinstance(event, Reply))
        if reply.error:
            raise CallError(reply.error)
        assert any(isinstance(event, Model) for event in events)
        return reply.value

    for method, args in (("sleep", (1,)), ("wake_up", ()), ("sleep", (2,)), ("wake_up", ()), ("unload", ())):
        call(method, *args)
    call("load", "sim:llama-3.2-1b@a100")
    assert core.info.name == "sim:llama-3.2-1b@a100" and core.info.max_model_len == 131072
    with pytest.raises(CallError, match="no device is known as 'b200'"):
        call("load", "sim:llama-3.2-1b@b200")
    core.add(Request("a", [1, 2], SamplingParams(max_tokens=3, ignore_eos=True)))
    assert len(gained(core)["a"]) == 3
    core.close()


def test_a_hundred_sequences_cost_what_the_formula_says() -> None:
    device = device_of(step_ms=1.0, sequence_us=10.0, token_us=1.0)
    clock = VirtualClock()
    runner = sim_runner(clock, on=device)
    plan = Plan(tuple([chunk(start=5) for _ in range(100)]))
    runner.launch(plan).wait()
    (work,) = rounds_of(plan, runner._cost)
    assert clock.now_ns() == round(step_seconds(device, runner._cost, work) * 1e9) == pytest.approx(1e6 + 100 * 11e3, rel=1e-6)
