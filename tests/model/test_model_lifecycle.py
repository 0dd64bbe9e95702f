"""Real models that come and go in one engine: memory is given back, and the next model is served as if it had been the first."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from checksum import drain

from mqlab.config import EngineConfig
from mqlab.engine.core import Core
from mqlab.errors import InvalidRequest
from mqlab.types import Call, EngineStats, Reply, Request, SamplingParams
from mqlab.wire.wiring import Wiring

MIB = 2**20
LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_act": "silu",
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "max_position_embeddings": 256,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
WEIGHTS = {"vocab_size": 2048, "hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 4}
WEIGHTS |= {"num_attention_heads": 16, "num_key_value_heads": 16}  # 4 * (4 * 1024² + 3 * 1024 * 4096) + 2 * 2048 * 1024 numbers
WEIGHTS_MIB = 272
KEYS = {"vocab_size": 128, "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 2}
KEYS |= {"num_attention_heads": 16, "num_key_value_heads": 16, "head_dim": 256}  # 64 KiB a token
KEYS_MIB = 200

MakeModel = Callable[..., Any]


@pytest.fixture
def dummy(tmp_path: Path) -> Callable[[dict[str, int]], str]:
    """The folder of a shape, for made-up weights."""

    def make(shape: dict[str, int]) -> str:
        folder = tmp_path / f"dummy-{shape['hidden_size']}"
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps({**LLAMA, **shape, "tie_word_embeddings": False}))
        (folder / "tokenizer.json").write_text("{}")
        return str(folder)

    return make


def engine(model: str, **fields: Any) -> Core:
    defaults = {"dtype": "float32", "num_kv_blocks": 40, "num_threads": 1, "max_num_seqs": 64, "load_format": "dummy"}
    return Wiring.of(EngineConfig(**{"model": model, **defaults, **fields})).build_core()


def call(core: Core, method: str, *args: Any) -> Any:
    events = core.call(Call(1, method, args))
    while core.loading:
        events += core.finish(core.begin().wait())
    (reply,) = (event for event in events if isinstance(event, Reply))
    assert reply.error is None, reply.error
    return reply.value


def freed(core: Core, method: str, *args: Any) -> float:
    """MiB that a call gave back."""
    memory = call(core, method, *args)
    return (memory["rss_before"] - memory["rss_after"]) / MIB


def answers(core: Core, prompts: list[list[int]], max_tokens: int = 6) -> list[tuple[int, ...]]:
    params = SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True)
    for i, prompt in enumerate(prompts):
        core.add(Request(str(i), prompt, params))
    found = drain(core).answers
    return [found[0, str(i)].tokens for i in range(len(prompts))]


def test_unload_gives_the_weights_back_and_another_model_follows(dummy: Callable[..., str], make_model: MakeModel, tmp_path: Path) -> None:
    make_model("Llama")
    prompts = [[5, 6, 7, 8], [96, 95, 94]]
    alone = engine(str(tmp_path), load_format="auto")
    wanted = answers(alone, prompts)
    alone.close()
    first = dummy(WEIGHTS)
    core = engine(first)
    large = answers(core, [[2000, 2001]])
    assert freed(core, "unload") > 0.9 * WEIGHTS_MIB
    info = call(core, "load", str(tmp_path), {"load_format": "auto"})
    assert info == core.info and (info.vocab_size, info.epoch, info.path) == (97, 2, str(tmp_path))
    with pytest.raises(InvalidRequest, match="has ids 0 to 96"):
        core.add(Request("a", [2000], SamplingParams()))
    assert answers(core, prompts) == wanted
    call(core, "load", first)
    assert answers(core, [[2000, 2001]]) == large
    core.close()


def test_sleep_gives_the_keys_back_and_keeps_the_weights(dummy: Callable[..., str]) -> None:
    core = engine(dummy(KEYS), num_kv_blocks=64 * 4 * 2, enable_prefix_caching=False)
    prompts = [[3 + (i * j) % 120 for j in range(60)] for i in range(64)]
    tokens = 4  # enough that the first has not ended, and given its blocks to the last, before the last began
    before = answers(core, prompts, tokens)
    for level in (1, 2):
        assert freed(core, "sleep", level) > 0.9 * KEYS_MIB
        stats: EngineStats = core.calls["stats"]()
        assert (stats.blocks_total, stats.kv_usage) == (0, 0)
        call(core, "wake_up")
        assert core.info.epoch == 1
        assert answers(core, prompts, tokens) == before
    core.close()
