"""What a model of transformers is like, found without its weights, and whether it can be served from a paged cache."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass
from inspect import signature
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING

from mqlab.errors import ModelError
from mqlab.model.hf_probe import NO_INTERFACE, PROBE, AttentionLayer, probe_layers


@dataclass(frozen=True)
class HfArchitecture:
    """A model's shape, as ``mqlab.model.shape.ModelShape`` wants it.

    Attributes:
        config: what transformers read from config.json.
        layers: the attention calls of a forward pass, in order.
    """

    name: str
    hidden: int
    vocab: int
    max_len: int
    config: PreTrainedConfig
    layers: tuple[AttentionLayer, ...]

    @property
    def kv_shapes(self) -> tuple[tuple[int, int], ...]:
        """KV heads and head size of each layer."""
        return tuple((layer.kv_heads, layer.head_dim) for layer in self.layers)


def hf_architecture(folder: Path) -> HfArchitecture:
    """What transformers' class for a model folder needs, found without its weights.

    Raises:
        ModelError: transformers has no causal language model for it, or its attention cannot be served from a paged cache: encoder-
            decoder models, recurrent states, keys and values of different sizes, biases, sinks or masks of its own, attention that
            does not go through transformers' interface.
    """
    config = _read_config(folder)
    text = config.get_text_config(decoder=True)
    try:
        with torch.device("meta"):
            # A copy, because the choices stay in it. The usual product of experts has no float32 version without weights.
            model = AutoModelForCausalLM.from_config(
                deepcopy(config), attn_implementation=PROBE, experts_implementation="batched_mm"
            ).eval()
        _check_name(config, type(model).__name__)
        body = body_of(model)[1]
        max_len = _max_len(text)
        layers, hidden = probe_layers(model, body, max_len)
    except Exception as error:  # whatever a model's code raises; most say so with a ValueError or a KeyError
        raise refused(folder, config, error) from error
    return HfArchitecture(type(model).__name__, hidden, text.vocab_size, max_len, config, layers)


def _read_config(folder: Path) -> PreTrainedConfig:
    try:
        config = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except Exception as error:  # the library's own errors, and those of the config classes
        raise ModelError(f"transformers cannot read {folder / 'config.json'}: {said(error)}; pass another model") from error
    if getattr(config, "quantization_config", None) is not None:
        raise refused(folder, config, ModelError("its weights are quantised; pass the float32, bfloat16 or float16 model"))
    if getattr(config, "is_encoder_decoder", False):
        raise refused(folder, config, ModelError("it is an encoder-decoder model"))
    if type(config) not in MODEL_FOR_CAUSAL_LM_MAPPING:
        raise refused(folder, config, ModelError(f"transformers has no causal language model of type {config.model_type!r}"))
    return config


def _check_name(config: PreTrainedConfig, name: str) -> None:
    """The type decides which class runs a model; weights of another class would not be what it takes them for."""
    if config.architectures and name not in config.architectures:
        raise ModelError(f"architectures={config.architectures!r}, but a model of type {config.model_type!r} is a {name}: set it to that")


def refused(folder: Path, config: PreTrainedConfig, reason: Exception) -> ModelError:
    """The error that tells why a model cannot be served."""
    name = (config.architectures or [config.model_type])[0]
    return ModelError(f"{name} in {folder} cannot be served through transformers: {said(reason)}; pass another model")


def said(error: Exception) -> str:
    """An error of anybody's in one line."""
    if isinstance(error, ModelError):
        return str(error)
    if isinstance(error, KeyError) and error.args == (PROBE,):  # a class with a table of attention classes of its own
        return NO_INTERFACE
    first_line = str(error).strip().partition("\n")[0].rstrip(".")
    return f"{type(error).__name__}: {first_line}"


def _max_len(config: PreTrainedConfig) -> int:
    """Positions, up to where rotary frequencies would begin to depend on the longest sequence of a step."""
    limits = [getattr(config, "max_position_embeddings", None)]
    if any(rope.get("rope_type") in ("dynamic", "longrope") for rope in _ropes(config)):
        limits += [rope.get("original_max_position_embeddings") for rope in _ropes(config)]
        limits.append(getattr(config, "original_max_position_embeddings", None))
    known = [limit for limit in limits if isinstance(limit, int)]
    if not known:
        raise ModelError("config.json names no max_position_embeddings")
    return min(known)


def _ropes(config: PreTrainedConfig) -> list[dict[str, Any]]:
    """Rotary settings: those of the model, or those of each type of layer."""
    rope = getattr(config, "rope_parameters", None) or {}
    return [rope] if "rope_type" in rope else [one for one in rope.values() if isinstance(one, dict)]


def body_of(model: PreTrainedModel) -> tuple[str, nn.Module]:
    """The part that gives hidden states, and its name in the model."""
    decoder = model.get_decoder()
    body = decoder if isinstance(decoder, PreTrainedModel) else model.base_model
    if body is model or "position_ids" not in signature(body.forward).parameters:
        raise ModelError("its forward pass takes no position_ids")
    return next(name for name, module in model.named_modules() if module is body), body
