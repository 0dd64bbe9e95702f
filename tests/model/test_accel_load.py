"""Where a model runs and with how much memory, and what is said where that cannot be. The GPU is made up."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from checksum import drain
from hypothesis import assume, given
from hypothesis import strategies as st
from triton import knobs

from mqlab.clock import ManualClock
from mqlab.config import EngineConfig
from mqlab.engine.engine_core import EngineCore
from mqlab.errors import ConfigError, ModelError
from mqlab.model.accel.accelerator import HostAccelerator, Memory
from mqlab.model.accel.backends.registry import BACKENDS
from mqlab.model.accel.buffers import Limits
from mqlab.model.accel.choice import Choice, choose
from mqlab.model.accel.decoder import DeviceDecoder
from mqlab.model.accel.graphs import graph_sizes
from mqlab.model.accel.memory import Need, allocate_on_all, allocate_pool, device_blocks, measure_need
from mqlab.model.accel.products import DenseProduct
from mqlab.model.accel.rehearsal import warm_up_plans
from mqlab.model.accel.runner import DeviceRunner
from mqlab.model.architecture import Architecture, read_architecture
from mqlab.model.kv import Pool, block_bytes
from mqlab.model.load import build, foresee
from mqlab.model.making import Alone, Making
from mqlab.model.runner import TorchRunner
from mqlab.model.weights import Weights
from mqlab.models.resolve import load_config
from mqlab.types import ModelInfo, Request, SamplingParams

MakeModel = Callable[..., Any]
GIB = 1 << 30


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (8, 0))


@pytest.fixture
def arch(make_model: MakeModel, tmp_path: Path) -> Architecture:
    make_model("Llama")
    return read_architecture(load_config(tmp_path))


def test_auto_is_a_gpu_where_there_is_one(gpu: None) -> None:
    assert choose(EngineConfig()) == Choice("cuda", "triton", torch.bfloat16)
    assert choose(EngineConfig(dtype="float16", attention_backend="sdpa")) == Choice("cuda", "sdpa", torch.float16)
    assert choose(EngineConfig(device="cpu")) == Choice("cpu", "numba", torch.float32)
    assert choose(EngineConfig(attention_backend="numba")) == Choice("cpu", "numba", torch.float32)
    with pytest.raises(ConfigError, match=r"--attention-backend='numba' runs on a CPU; pass --device cpu"):
        choose(EngineConfig(device="cuda", attention_backend="numba"))


def test_auto_before_ampere_is_what_such_a_gpu_has(gpu: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (7, 5))
    assert choose(EngineConfig()) == Choice("cuda", "sdpa", torch.float16)


def test_auto_is_the_cpu_elsewhere() -> None:
    assert choose(EngineConfig()) == Choice("cpu", "numba", torch.float32)
    assert choose(EngineConfig(attention_backend="torch", dtype="float16")) == Choice("cpu", "torch", torch.float16)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"device": "cuda"}, r"--device='cuda' is not here: torch .* sees no GPU; .* or pass --device cpu"),
        ({"attention_backend": "triton"}, r"--attention-backend='triton' needs a GPU; .* TRITON_INTERPRET=1"),
        ({"dtype": "float16"}, r"--dtype='float16' needs a GPU or --attention-backend torch"),
        ({"quantization": "w8a8"}, r"--quantization='w8a8' needs a GPU or --attention-backend torch"),
    ],
)
def test_what_does_not_go_together(fields: dict[str, Any], message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(knobs.runtime, "interpret", False)
    with pytest.raises(ConfigError, match=message):
        choose(EngineConfig(**fields))


def test_what_transformers_runs_stays_on_the_cpu(
    gpu: None, make_model: MakeModel, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    make_model("StableLm", num_hidden_layers=1)
    info = foresee(EngineConfig(model=str(tmp_path)))
    assert info.dtype == "float32"
    (record,) = caplog.records
    assert "runs on the CPU, though there is a GPU" in record.getMessage()
    for fields in ({"device": "cuda"}, {"attention_backend": "torch"}):
        with pytest.raises(ModelError, match=r"cannot run on a GPU .* --device cpu, and no --attention-backend"):
            foresee(EngineConfig(model=str(tmp_path), **fields))


class MadeUp(HostAccelerator):
    """A GPU of 80 GiB, of which others hold 2 and this process 10."""

    @property
    def device(self) -> torch.device:
        return torch.device("cuda")

    def memory(self) -> Memory:
        return Memory(total=80 * GIB, free=67 * GIB, held=11 * GIB, used=10 * GIB)


def blocks(arch: Architecture, step: float = 3, **fields: Any) -> int:
    need = Need(step=round(step * GIB), graphs=GIB)
    return device_blocks(EngineConfig(**fields), arch, torch.bfloat16, MadeUp(), lambda: need)


def test_the_cache_gets_what_the_rest_leaves(arch: Architecture) -> None:
    size = block_bytes(arch, 16, torch.bfloat16)
    assert blocks(arch) == round(0.9 * 80 - 2 - 10 - 3 - 1) * GIB // size - 1
    assert blocks(arch, gpu_memory_utilization=0.5) == 24 * GIB // size - 1
    assert blocks(arch, gpu_memory_utilization=0.5, kv_cache_gb=2.0) == 2 * GIB // size
    assert blocks(arch, gpu_memory_utilization=0.5, kv_cache_gb=2.0, num_kv_blocks=7) == 7


def test_a_cache_for_which_nothing_is_left(arch: Architecture) -> None:
    told = r"--gpu-memory-utilization=0\.2 of 80\.0 GiB leaves no KV block .* weights 10\.00, a step 3\.00, graphs 1\.00, others .* 2\.00;"
    with pytest.raises(ConfigError, match=told):
        blocks(arch, gpu_memory_utilization=0.2)


def test_a_cache_that_the_machine_has_not(arch: Architecture) -> None:
    with pytest.raises(ConfigError, match=r"KV blocks take .* lower"):
        allocate_pool(arch, 10**11, 16, torch.float32, torch.device("cpu"))


@dataclass(frozen=True)
class Pair(Alone):
    """A rank whose peer says how many it has."""

    other: int = 1

    def least(self, count: int) -> int:
        return min(count, self.other)


def test_all_ranks_have_a_cache_or_none(arch: Architecture) -> None:
    def refused() -> list[Pool]:
        raise ConfigError("too much")

    def made() -> list[Pool]:
        return allocate_pool(arch, 2, 16, torch.float32, torch.device("cpu"))

    assert len(allocate_on_all(Pair(size=2), made)) == 3
    for allocate, other, told in ((refused, 1, "too much"), (refused, 0, "too much"), (made, 0, "another GPU refuses")):
        with pytest.raises(ConfigError, match=told):
            allocate_on_all(Pair(size=2, other=other), allocate)


class Counted(HostAccelerator):
    """Tells a peak of its own of each run: prompts, decodes, what is captured."""

    peaks = (0, 5 * GIB, 7 * GIB, 2 * GIB)
    measured = 0

    def memory(self) -> Memory:
        return Memory(80 * GIB, 80 * GIB, peak=self.peaks[self.measured])

    def reset_peak(self) -> None:
        self.measured += 1


@pytest.mark.parametrize("backend", ["torch", "sdpa"])
@torch.inference_mode()
def test_the_largest_steps_are_run_to_be_measured(backend: str, arch: Architecture, tmp_path: Path) -> None:
    accelerator = Counted()
    decoder = DeviceDecoder(arch, Weights(tmp_path, torch.float32), arch.max_len, BACKENDS[backend](), Making(DenseProduct))
    need = measure_need(accelerator, decoder, Limits(70, 4, 2, 16), 32, 4, 2, torch.float32)
    assert need.step == 7 * GIB
    assert 2 * GIB < need.graphs < 3 * GIB


@given(st.integers(2, 300), st.integers(1, 40), st.integers(1, 32), st.integers(1, 400), st.integers(1, 3))
def test_warm_up_stays_within_what_steps_hold(max_len: int, num_blocks: int, block_size: int, most: int, seqs: int) -> None:
    pool = num_blocks * block_size
    assume(min(max_len, pool) >= 2)
    longest = min(max_len, pool) - 1
    sizes = {"max_model_len": max_len, "max_prompt_len": longest, "num_blocks": num_blocks, "block_size": block_size}
    info = ModelInfo(name="m", vocab_size=9, eos_token_ids=(), pid=1, max_num_seqs=seqs, **sizes)
    plans = warm_up_plans(info, most)
    for plan in plans:
        assert sum(len(chunk.tokens) for chunk in plan.chunks) <= most and len(plan.chunks) <= seqs
        for chunk in plan.chunks:
            assert chunk.end + chunk.rounds - 1 <= len(chunk.blocks) * block_size and len(chunk.blocks) <= -(-max_len // block_size)
    assert max(len(chunk.tokens) for plan in plans for chunk in plan.chunks) == min(most, longest)


def test_graphs_are_of_the_sizes_that_are_asked_for() -> None:
    assert graph_sizes(EngineConfig(max_num_seqs=30)) == (1, 2, 4, 8, 16, 24, 30)
    assert graph_sizes(EngineConfig(max_num_seqs=1)) == (1,)
    assert graph_sizes(EngineConfig(max_num_seqs=30, cuda_graph_sizes=(16, 4, 64))) == (4, 16)
    assert graph_sizes(EngineConfig(enforce_eager=True)) == ()


def test_a_cpu_s_cache_is_a_gib(make_model: MakeModel, tmp_path: Path) -> None:
    make_model("Llama")
    for backend in ("torch", "numba"):
        info = foresee(EngineConfig(model=str(tmp_path), attention_backend=backend))
        assert info.num_blocks == GIB // (2 * 3 * 2 * 16 * 4 * 16)


def test_which_runner_is_built(make_model: MakeModel, tmp_path: Path) -> None:
    make_model("Llama")
    small = {"model": str(tmp_path), "num_kv_blocks": 20, "num_threads": 1, "max_num_seqs": 2}
    for backend, kind in (("auto", TorchRunner), ("numba", TorchRunner), ("torch", DeviceRunner)):
        runner = build(EngineConfig(attention_backend=backend, **small))
        assert type(runner) is kind and runner.info.num_blocks == 20
        runner.close()


def test_a_device_that_is_full_before_its_cache(make_model: MakeModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*args: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory.\nTried to allocate")

    make_model("Llama")
    monkeypatch.setattr("mqlab.model.accel.load.StepBuffers", full)
    with pytest.raises(ConfigError, match=r"left for the largest step \(CUDA out of memory\.\); lower"):
        build(EngineConfig(model=str(tmp_path), num_kv_blocks=20, num_threads=1, attention_backend="torch"))


@pytest.mark.parametrize("fields", [{"quantization": "w8a8"}, {"dtype": "bfloat16"}, {"load_format": "dummy", "dtype": "float16"}])
def test_other_types_give_answers(fields: dict[str, Any], make_model: MakeModel, tmp_path: Path) -> None:
    make_model("Qwen3")
    engine = EngineConfig(model=str(tmp_path), attention_backend="torch", num_kv_blocks=20, num_threads=1, max_num_seqs=2, **fields)
    core = EngineCore(build(engine), engine, ManualClock())
    core.add(Request("0", [3, 4, 5], SamplingParams(temperature=0, max_tokens=4, ignore_eos=True)))
    answers = drain(core).answers
    core.close()
    assert len(answers[0, "0"].tokens) == 4
