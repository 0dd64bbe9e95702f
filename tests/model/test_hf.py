"""Models that transformers computes over the paged cache: which are served, with the logits of transformers alone, and which are not."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from checksum import drain
from plans import Line, lines
from transformers import AutoConfig, AutoModelForCausalLM

from mqlab.clock import ManualClock
from mqlab.config import EngineConfig
from mqlab.engine.engine_core import EngineCore
from mqlab.errors import ConfigError, ModelError
from mqlab.model.architecture import read_architecture
from mqlab.model.attention import LONG_CHUNK
from mqlab.model.batch import BatchTensors
from mqlab.model.decoder import Decoder
from mqlab.model.dummy import DummyWeights
from mqlab.model.forward import Forward
from mqlab.model.hf import HfModel
from mqlab.model.hf_shape import hf_architecture
from mqlab.model.kv import allocate
from mqlab.model.load import build, foresee
from mqlab.model.shape import ModelShape
from mqlab.model.weights import Weights
from mqlab.models.resolve import load_config
from mqlab.plan import Chunk, Plan
from mqlab.types import Request, SamplingParams

BLOCK = 16
POOL = 64
VOCAB = 97
WINDOW = 24
LONG = 2 * LONG_CHUNK + 12

SHAPE = {
    "vocab_size": VOCAB,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
SLIDING = {"sliding_window": WINDOW}

SERVED: dict[str, dict[str, Any]] = {
    "gpt2": {},
    "opt": {"ffn_dim": 80, "word_embed_proj_dim": 32},
    "phi": {},
    "stablelm": {},
    "gemma3_text": {**SLIDING, "head_dim": 16, "layer_types": ["sliding_attention", "full_attention", "sliding_attention"]},
    "olmo2": {},
    "granite": {"attention_multiplier": 0.3, "logits_scaling": 2.0},
    "starcoder2": SLIDING,
    "cohere": {"logit_scale": 0.5},
    "cohere2": {**SLIDING, "head_dim": 16, "layer_types": ["sliding_attention", "full_attention", "full_attention"]},
    "gptj": {"rotary_dim": 4},
    "gpt_bigcode": {},
    "bert": {"is_decoder": True},
    "mixtral": {**SLIDING, "num_local_experts": 4},
    "olmo3": SLIDING,
    "gemma4_unified_text": {**SLIDING, "head_dim": 16, "global_head_dim": 32},
    "vaultgemma": {**SLIDING, "head_dim": 16, "attn_logit_softcapping": 2.0},
    "diffllama": {},
}
"""By transformers' model_type."""

ALSO_SERVED: dict[str, dict[str, Any]] = {
    "apertus": {},
    "arcee": {},
    "aria_text": {},
    "biogpt": {},
    "bitnet": {},
    "codegen": {"rotary_dim": 4},
    "cwm": SLIDING,
    "ernie4_5": {},
    "exaone4": SLIDING,
    "flex_olmo": {},
    "gemma": {"head_dim": 16},
    "glm": {"head_dim": 16},
    "glm4": {"head_dim": 16},
    "gpt_neox": {},
    "granitemoe": {},
    "granitemoeshared": {},
    "helium": {"head_dim": 8},
    "hunyuan_v1_dense": {"head_dim": 8},
    "hyperclovax": {},
    "jais2": {},
    "minimax_m2": {"head_dim": 16},
    "ministral": {**SLIDING, "head_dim": 8},
    "mistral": SLIDING,
    "modernbert-decoder": {"sliding_window": WINDOW},
    "nanochat": {},
    "nemotron": {},
    "olmo": {},
    "persimmon": {},
    "phi3": SLIDING,
    "phimoe": SLIDING,
    "qwen3": {"head_dim": 16},
    "seed_oss": {"head_dim": 16},
    "smollm3": {},
}

NO_INTERFACE = "its attention does not go through transformers' attention interface"
NO_POSITIONS = "its forward pass takes no position_ids"
NOT_CAUSAL = "its attention is neither causal nor causal within a sliding window"
STATE = "it keeps a recurrent state besides keys and values"
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "falcon": ({}, NO_INTERFACE),
    "openai-gpt": ({}, NO_INTERFACE),
    "bloom": ({}, NO_POSITIONS),
    "mpt": ({}, NO_POSITIONS),
    "mamba": ({}, NO_POSITIONS),
    "bert": ({}, NOT_CAUSAL),
    "recurrent_gemma": ({}, STATE),
    "qwen3_5_text": ({}, STATE),
    "lfm2": ({"layer_types": ["conv", "full_attention", "conv"]}, "only 1 of its 3 layers are attention"),
    "gpt_oss": ({"num_local_experts": 4, "head_dim": 16}, "its attention asks for s_aux"),
    "deepseek_v3": ({"n_routed_experts": 4, "n_group": 1, "topk_group": 1, "num_experts_per_tok": 2}, "keys have 192 dimensions"),
    "doge": ({}, "a mask of the model's own"),
    "llama4_text": ({}, NO_POSITIONS),
    "bart": ({"d_model": 48}, "encoder-decoder"),
    "t5": ({}, "encoder-decoder"),
    "vit": ({}, "transformers has no causal language model of type 'vit'"),
}


def save(folder: Path, model_type: str, **overrides: Any) -> Any:
    """A model with random weights as transformers has it, saved in ``folder``."""
    config = AutoConfig.for_model(model_type, **{**SHAPE, **overrides})
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            is_norm = parameter.ndim == 1 and name.endswith("weight")
            parameter.normal_(1.0 if is_norm else 0.0, 0.15)
    model.save_pretrained(folder)
    return model


class Under:
    """A model with a fresh pool, run plan by plan."""

    def __init__(self, model: Forward, shape: ModelShape) -> None:
        self.model = model
        self.cache = allocate(shape, POOL, BLOCK, torch.float32)
        for layer in self.cache:
            layer.keys.fill_(torch.nan)  # so that reading what was never written shows
            layer.values.fill_(torch.nan)

    def run(self, *chunks: Chunk) -> torch.Tensor:
        batch = BatchTensors.of(Plan(chunks), BLOCK)
        return self.model.logits(self.model.states(batch, self.cache)[batch.logit_rows])


def load(folder: Path, dtype: torch.dtype = torch.float32) -> Under:
    arch = hf_architecture(folder)
    return Under(HfModel(arch, folder, dtype), arch)


def sequences(*lengths: int) -> list[Line]:
    """Random tokens; blocks in shuffled order."""
    rng = random.Random(0)
    return lines([[rng.randrange(VOCAB) for _ in range(length)] for length in lengths], rng.sample(range(POOL), POOL), BLOCK)


def check_steps(under: Under, model: Any) -> None:
    """Prompts in one, two and many chunks, mixed in one step with each other and with decode."""
    one, two, many = sequences(LONG, LONG - 3, 40)
    wanted = {line: model(input_ids=torch.tensor([line.tokens]), use_cache=False).logits[0] for line in (one, two, many)}
    steps = [[(one, 0, LONG - 1), (two, 0, 9), (many, 0, 1)], [(one, LONG - 1, LONG), (two, 9, LONG - 4), (many, 1, 17)]]
    steps += [[(two, LONG - 4, LONG - 3), (many, 17, 39)], [(many, 39, 40)]]
    for step in steps:
        actual = under.run(*(line.chunk(start, end) for line, start, end in step))
        torch.testing.assert_close(actual, torch.stack([wanted[line][end - 1] for line, _, end in step]), atol=1e-4, rtol=0)


@torch.inference_mode()
@pytest.mark.parametrize("model_type", SERVED)
def test_logits_equal_transformers(model_type: str, tmp_path: Path) -> None:
    model = save(tmp_path, model_type, **SERVED[model_type])
    check_steps(load(tmp_path), model)


@pytest.mark.full
@torch.inference_mode()
@pytest.mark.parametrize("model_type", ALSO_SERVED)
def test_logits_equal_transformers_for_more_classes(model_type: str, tmp_path: Path) -> None:
    model = save(tmp_path, model_type, **ALSO_SERVED[model_type])
    check_steps(load(tmp_path), model)


@pytest.mark.parametrize("model_type", REFUSED)
def test_what_cannot_be_served_is_refused_before_its_weights_are_read(model_type: str, tmp_path: Path) -> None:
    overrides, reason = REFUSED[model_type]
    AutoConfig.for_model(model_type, **{**SHAPE, **overrides}).save_pretrained(tmp_path)
    with pytest.raises(ModelError, match=f"in {tmp_path} cannot be served through transformers: .*{reason}.*; pass another model"):
        hf_architecture(tmp_path)


def test_a_state_space_model_is_refused_for_what_it_is_and_not_for_a_context_that_it_need_not_name(tmp_path: Path) -> None:
    sizes = {name: SHAPE[name] for name in ("vocab_size", "hidden_size", "num_hidden_layers")}
    AutoConfig.for_model("mamba", **sizes).save_pretrained(tmp_path)
    with pytest.raises(ModelError, match=NO_POSITIONS):
        hf_architecture(tmp_path)


@torch.inference_mode()
def test_a_model_that_does_not_go_by_position_ids_is_refused(tmp_path: Path) -> None:
    save(tmp_path, "roberta", is_decoder=True)  # counts positions from another number than 0
    with pytest.raises(ModelError, match="in two steps its logits differ"):
        load(tmp_path)


OURS: dict[str, dict[str, Any]] = {
    "llama": {},
    "qwen2": {"tie_word_embeddings": True},
    "gemma2": {**SLIDING, "head_dim": 16, "attn_logit_softcapping": 3.0, "final_logit_softcapping": 2.0},
}


@torch.inference_mode()
@pytest.mark.parametrize("model_type", OURS)
def test_both_ways_to_serve_a_family_agree(model_type: str, tmp_path: Path) -> None:
    save(tmp_path, model_type, **OURS[model_type])
    arch = read_architecture(load_config(tmp_path))
    ours, theirs = Under(Decoder(arch, Weights(tmp_path, torch.float32), arch.max_len), arch), load(tmp_path)
    (line,) = sequences(LONG)
    for start, end in ((0, LONG_CHUNK), (LONG_CHUNK, LONG - 1), (LONG - 1, LONG)):
        torch.testing.assert_close(*(under.run(line.chunk(start, end)) for under in (ours, theirs)), atol=1e-4, rtol=0)


def test_the_shape_is_that_of_each_layer(tmp_path: Path) -> None:
    save(tmp_path, "gemma4_unified_text", **SERVED["gemma4_unified_text"])
    arch = hf_architecture(tmp_path)
    assert (arch.name, arch.hidden, arch.vocab, arch.max_len) == ("Gemma4UnifiedForCausalLM", 48, VOCAB, 256)
    assert arch.kv_shapes == ((2, 16), (2, 16), (2, 32))


@torch.inference_mode()
def test_the_width_is_that_of_the_hidden_states_and_not_of_the_layers(tmp_path: Path) -> None:
    save(tmp_path, "opt", **SERVED["opt"])
    arch = hf_architecture(tmp_path)
    (line,) = sequences(3)
    batch = BatchTensors.of(Plan((line.chunk(0, 3),)), BLOCK)
    states = HfModel(arch, tmp_path, torch.float32).states(batch, allocate(arch, POOL, BLOCK, torch.float32))
    assert states.shape == (3, arch.hidden) == (3, 32)


def test_rotary_frequencies_that_depend_on_the_longest_sequence_end_the_context(tmp_path: Path) -> None:
    factors = [1.0] * 4
    scaled = {"rope_type": "longrope", "short_factor": factors, "long_factor": factors, "original_max_position_embeddings": 64}
    save(tmp_path, "phi3", rope_parameters={**scaled, "rope_theta": 1e4}, original_max_position_embeddings=64)
    assert hf_architecture(tmp_path).max_len == 64


@torch.inference_mode()
def test_bfloat16_stays_near_float32(tmp_path: Path) -> None:
    save(tmp_path, "phi")
    arch = hf_architecture(tmp_path)
    batch = BatchTensors.of(Plan(tuple(line.chunk(0, length) for line, length in zip(sequences(20, LONG), (20, LONG), strict=True))), BLOCK)
    wide, narrow = (
        model.logits(model.states(batch, allocate(arch, POOL, BLOCK, dtype)))
        for dtype in (torch.float32, torch.bfloat16)
        for model in [HfModel(arch, tmp_path, dtype)]
    )
    assert (wide - narrow).abs().max() < 0.1 * wide.std()


@torch.inference_mode()
def test_weights_that_do_not_fit_the_config(tmp_path: Path) -> None:
    save(tmp_path, "gpt2")
    path = tmp_path / "config.json"
    config = json.loads(path.read_text())
    path.write_text(json.dumps({**config, "n_layer": 4}))
    with pytest.raises(ModelError, match=r"lacks transformer\.h\.3\..* in the shape that GPT2LMHeadModel calls for"):
        load(tmp_path)
    path.write_text(json.dumps({**config, "n_inner": 99}))
    with pytest.raises(ModelError, match=r"h\.0\.mlp\.c_fc"):
        load(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(ModelError, match=f"transformers cannot load {tmp_path}: "):
        load(tmp_path)


def test_a_model_with_code_of_its_own_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "mine", "auto_map": {"AutoConfig": "mine.Config"}}))
    (tmp_path / "mine.py").write_text("raise SystemExit('ran')")
    with pytest.raises(ModelError, match=r"transformers cannot read .*config\.json: .*; pass another model"):
        hf_architecture(tmp_path)


@pytest.mark.parametrize("backend", ["auto", "torch"])
def test_it_cannot_be_quantised_and_no_backend_is_named_that_could(backend: Any, tmp_path: Path) -> None:
    save(tmp_path, "opt")
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(ConfigError, match=r"--quantization='w8a8' is not possible for a model that transformers runs .*; leave it out"):
        foresee(EngineConfig(model=str(tmp_path), attention_backend=backend, quantization="w8a8"))


@torch.inference_mode()
def test_dummy_weights_need_no_file(tmp_path: Path) -> None:
    save(tmp_path, "opt")
    (tmp_path / "model.safetensors").unlink()
    arch = hf_architecture(tmp_path)
    (line,) = sequences(20)
    first, second = (
        Under(HfModel(arch, tmp_path, torch.float32, DummyWeights(torch.float32)), arch).run(line.chunk(0, 20)) for _ in range(2)
    )
    assert torch.equal(first, second)
    assert first.std() > 0


@torch.inference_mode()
def greedy(model: Any, prompt: list[int], count: int) -> tuple[int, ...]:
    """By running the whole sequence for each token."""
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(int(model(input_ids=torch.tensor([tokens]), use_cache=False).logits[0, -1].argmax()))
    return tuple(tokens[len(prompt) :])


@pytest.mark.parametrize("model_type", ["gpt2", "gemma3_text"])
def test_an_engine_gives_the_tokens_of_transformers(model_type: str, tmp_path: Path) -> None:
    model = save(tmp_path, model_type, **SERVED[model_type])
    (tmp_path / "tokenizer.json").write_text("{}")
    # So few blocks that not all six fit at once, and so few tokens a step that prompts are cut.
    config = EngineConfig(model=str(tmp_path), num_kv_blocks=9, num_threads=1, max_num_seqs=8, max_num_batched_tokens=16)
    core = EngineCore(build(config), config, ManualClock())
    rng = random.Random(2)
    prompts = [[rng.randrange(VOCAB) for _ in range(rng.randrange(1, 50))] for _ in range(6)]
    for i, prompt in enumerate(prompts):
        core.add(Request(str(i), prompt, SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)))
    answers = drain(core).answers
    core.close()
    assert [answers[0, str(i)].tokens for i in range(6)] == [greedy(model, prompt, 8) for prompt in prompts]


def test_serving_the_default_family_does_not_import_transformers() -> None:
    script = "import sys, mqlab.model.load, mqlab.model.runner; sys.exit('transformers' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], timeout=60, check=False).returncode == 0
