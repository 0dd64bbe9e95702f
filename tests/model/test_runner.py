"""The runner as the engine uses it: what it tells of the model, what it refuses, and that its tokens are transformers'."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from plans import lines
from tiny_serving import prompts, serve

from mqlab.config import EngineConfig
from mqlab.errors import ConfigError, ModelError
from mqlab.model.load import build, choose_dtype
from mqlab.model.runner import TorchRunner
from mqlab.plan import Plan
from mqlab.types import SamplingParams

MakeModel = Callable[..., Any]
NEW = 12


def config(folder: Path, **fields: Any) -> EngineConfig:
    defaults = {"dtype": "float32", "num_kv_blocks": 40, "num_threads": 1, "max_num_seqs": 8, "max_num_batched_tokens": 64}
    return EngineConfig(**{"model": str(folder), **defaults, **fields})


@torch.inference_mode()
def greedy(model: Any, prompt: list[int]) -> tuple[int, ...]:
    tokens = torch.tensor([prompt])
    out = model.generate(tokens, attention_mask=torch.ones_like(tokens), max_new_tokens=NEW, min_new_tokens=NEW, do_sample=False)
    return tuple(out[0, len(prompt) :].tolist())


def test_info(llama: Any, tmp_path: Path) -> None:
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [2, 7]}))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<end>"}))
    info = build(config(tmp_path)).info
    assert (info.name, info.path) == (tmp_path.name, str(tmp_path))
    assert (info.architecture, info.dtype, info.vocab_size) == ("LlamaForCausalLM", "float32", 97)
    assert (info.num_blocks, info.block_size, info.max_model_len, info.max_prompt_len) == (40, 16, 256, 255)
    assert info.eos_token_ids == (2, 5, 7)
    assert info.pid == os.getpid()


@pytest.mark.parametrize(
    ("fields", "max_model_len", "max_prompt_len"),
    [({"max_model_len": 100}, 100, 99), ({"num_kv_blocks": 3}, 256, 47), ({"num_kv_blocks": 3, "block_size": 4}, 256, 11)],
)
def test_limits(fields: dict[str, int], max_model_len: int, max_prompt_len: int, llama: Any, tmp_path: Path) -> None:
    info = build(config(tmp_path, **fields)).info
    assert (info.max_model_len, info.max_prompt_len) == (max_model_len, max_prompt_len)


def test_the_pool_takes_the_memory_it_is_given(llama: Any, tmp_path: Path) -> None:
    token_bytes = 2 * 3 * 2 * 16 * 4  # keys and values, layers, KV heads, head size, float32
    info = build(config(tmp_path, num_kv_blocks=None, kv_cache_gb=100.5 * 16 * token_bytes / 2**30, served_model_name="mine")).info
    assert info.num_blocks == 100
    assert info.name == "mine"


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"max_model_len": 257}, r"--max-model-len=257 is above the model's own limit; pass at most 256"),
        ({"num_kv_blocks": None, "kv_cache_gb": 1e-9}, r"--kv-cache-gb=1e-09 holds no KV block"),
        ({"num_kv_blocks": 10**11}, r"100000000000 KV blocks take [\d.]+ GiB, this machine has [\d.]+ GiB available; lower"),
        ({"num_kv_blocks": 1, "block_size": 1}, r"--num-kv-blocks=1 gives 1 tokens"),
    ],
)
def test_settings_that_do_not_fit_the_model(fields: dict[str, Any], message: str, llama: Any, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        build(config(tmp_path, **fields))


def test_too_large_a_pool_is_refused_before_the_weights_are_read(llama: Any, tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "num_hidden_layers": 4}))
    with pytest.raises(ConfigError, match="KV blocks take"):
        build(config(tmp_path, num_kv_blocks=10**11))


def test_what_the_weights_hold_and_the_config_does_not_call_for_is_told(
    llama: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    build(config(tmp_path)).close()
    assert not caplog.records
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "num_hidden_layers": 2}))
    build(config(tmp_path)).close()
    (record,) = caplog.records
    assert "tensors that config.json does not call for, and that are not used: model.layers.2." in record.getMessage()


def test_weights_that_do_not_fit_the_config(llama: Any, tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    original = json.loads(path.read_text())
    path.write_text(json.dumps({**original, "num_hidden_layers": 4}))
    with pytest.raises(ModelError, match=r"no tensor 'model\.layers\.3\."):
        build(config(tmp_path))
    path.write_text(json.dumps({**original, "intermediate_size": 161}))
    with pytest.raises(ModelError, match=r"'model\.layers\.0\.mlp\.gate_proj\.weight' has shape"):
        build(config(tmp_path))


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"num_kv_blocks": 9},
        {"max_num_batched_tokens": 9, "block_size": 5},
        {"max_num_batched_tokens": 512},
        {"num_scheduler_steps": 4},
        {"num_scheduler_steps": 8, "num_kv_blocks": 9},
        {"async_scheduling": True},
        {"async_scheduling": True, "num_kv_blocks": 9},
        {"async_scheduling": True, "max_num_batched_tokens": 9, "block_size": 5},
        {"async_scheduling": True, "num_scheduler_steps": 4, "num_kv_blocks": 9},
    ],
    ids=[
        "plain",
        "preempted",
        "small chunks",
        "whole prompts",
        "multi-step",
        "multi-step, preempted",
        "async",
        "async, preempted",
        "async, small chunks",
        "async, multi-step, preempted",
    ],
)
def test_greedy_tokens_equal_transformers_however_scheduled(fields: dict[str, Any], llama: Any, tmp_path: Path) -> None:
    params = SamplingParams(temperature=0, max_tokens=NEW, ignore_eos=True)
    many = prompts(10)
    assert serve(config(tmp_path, **fields), [(prompt, params) for prompt in many]) == [greedy(llama, prompt) for prompt in many]


def test_seeded_tokens_are_the_same_alone_and_in_company(llama: Any, tmp_path: Path) -> None:
    def asked(seed: int) -> SamplingParams:
        return SamplingParams(temperature=1.2, top_p=0.9, top_k=40, seed=seed, max_tokens=NEW, ignore_eos=True)

    many = prompts(6)
    together = serve(config(tmp_path), [(prompt, asked(i)) for i, prompt in enumerate(many)])
    assert together == [serve(config(tmp_path), [(prompt, asked(i))])[0] for i, prompt in enumerate(many)]
    for fields in ({"num_scheduler_steps": 4}, {"async_scheduling": True}):
        assert together == serve(config(tmp_path, **fields), [(prompt, asked(i)) for i, prompt in enumerate(many)])
    assert together != serve(config(tmp_path), [(prompt, asked(i + 1)) for i, prompt in enumerate(many)])


def test_launch_leaves_the_work_to_wait(llama: Any, tmp_path: Path) -> None:
    """The engine does its own work in between, and another thread may do the waiting."""
    runner = build(config(tmp_path))
    (line,) = lines([prompts(1)[0]], range(8))
    plan = Plan((line.chunk(0, len(line.tokens)),))
    wanted = runner.launch(plan).wait()
    flight = runner.launch(plan)
    seen: list[Any] = []
    thread = threading.Thread(target=lambda: seen.append(flight.wait()))
    thread.start()
    thread.join(30)
    assert seen == [wanted]


def test_two_engines_may_step_at_once(llama: Any, tmp_path: Path) -> None:
    params = SamplingParams(temperature=0, max_tokens=NEW, ignore_eos=True)
    many = prompts(4)
    seen: dict[int, Any] = {}

    def work(n: int) -> None:
        seen[n] = serve(config(tmp_path, num_threads=2), [(prompt, params) for prompt in many])

    threads = [threading.Thread(target=work, args=(n,)) for n in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    wanted = [greedy(llama, prompt) for prompt in many]
    assert seen == {0: wanted, 1: wanted}


def test_closed_runner_refuses_to_run(llama: Any, tmp_path: Path) -> None:
    runner = build(config(tmp_path))
    runner.close()
    runner.close()
    (line,) = lines([[1, 2]], range(1))
    with pytest.raises(RuntimeError, match="closed"):
        runner.launch(Plan((line.chunk(0, 2),))).wait()


def test_auto_dtype_does_not_depend_on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"avx512_bf16": True, "amx_bf16": True})
    assert choose_dtype("auto") == torch.float32
    assert choose_dtype("bfloat16") == torch.bfloat16


def test_bfloat16_is_served(llama: Any, tmp_path: Path) -> None:
    runner = build(config(tmp_path, dtype="bfloat16"))
    assert isinstance(runner, TorchRunner)
    assert runner.info.dtype == "bfloat16"
