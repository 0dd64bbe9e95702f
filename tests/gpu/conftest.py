"""What needs a GPU: skipped where there is none. Nothing here runs kernels in this process, whose Triton is interpreted."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

LAYERS = 3


@pytest.fixture(scope="session", autouse=True)
def on_gpu() -> Iterator[None]:
    """Children compile their kernels."""
    import torch  # not where these tests are only collected

    if not torch.cuda.is_available():
        pytest.skip("torch sees no GPU")
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("TRITON_INTERPRET", raising=False)
        yield


@pytest.fixture(scope="session")
def model_folder(model_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The default model. A machine without a network may have nothing of it but config and tokenizer: then one made of those."""
    if (model_folder / "model.safetensors").is_file():
        return model_folder
    return made_up(model_folder, tmp_path_factory.mktemp("made-up"))


@pytest.fixture(scope="session")
def share_behind(model_folder: Path) -> float:
    """How many greedy tokens may be another than transformers' best: made-up weights are less sure than trained ones."""
    return 0.1 if model_folder.name.startswith("made-up") else 0.05


def made_up(like: Path, folder: Path) -> Path:
    """A few layers of a model's shape with random weights, so large that what it attends to decides and bfloat16 seldom does."""
    import torch
    import transformers

    config = json.loads((like / "config.json").read_text(encoding="utf-8"))
    shape = transformers.LlamaConfig(**{**config, "num_hidden_layers": LAYERS, "tie_word_embeddings": False})
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(shape).float()
    large = {"model.embed_tokens.weight": 1.0, "lm_head.weight": 3 * shape.hidden_size**-0.5}
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.ndim == 2:
                weight.normal_(0, large.get(name, 0.05))
    model.save_pretrained(folder)
    for file in like.glob("tokenizer*"):
        shutil.copy(file, folder)
    return folder
