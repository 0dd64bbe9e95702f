"""Causal language models that transformers computes, with this package's paged KV cache behind their attention.

For what the decoder here does not know. transformers (5.24) hands attention to a function registered by name: the one below stores
keys and values in the paged cache and attends there, so that a step may mix chunks of any number of sequences, laid out as one row.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.initialization import no_init_weights
from transformers.modeling_utils import AttentionInterface
from transformers.utils.generic import ModelOutput

from mqlab.errors import ModelError
from mqlab.model.attention import Attention
from mqlab.model.batch import BatchTensors
from mqlab.model.dummy import DummyWeights
from mqlab.model.hf_probe import AttentionLayer
from mqlab.model.hf_shape import HfArchitecture, body_of, refused, said
from mqlab.model.kv import LayerCache, allocate
from mqlab.plan import Chunk, Plan
from mqlab.types import SamplingParams

PAGED = "mqlab_paged"
_TESTED = 8
_FIRST = 5
_BLOCK = 4
_TOLERANCE = {torch.float32: 1e-3, torch.bfloat16: 0.1}
"""Largest difference of logits from transformers' own, as a share of the largest logit."""


class HfModel:
    """A model of transformers as a ``Forward``.

    Args:
        arch: of the same folder.
        folder: config.json and safetensors.
        dtype: of weights and activations.
        dummy: weights to put in; None reads those of the folder.

    Raises:
        ModelError: weights that are missing or do not fit, or a model that gives other logits in steps than in one piece.
    """

    def __init__(self, arch: HfArchitecture, folder: Path, dtype: torch.dtype, dummy: DummyWeights | None = None) -> None:
        self._layers = arch.layers
        self._dtype = dtype
        self._unrotated = torch.empty(arch.max_len, 0)
        self._head = _load(arch, folder, dtype) if dummy is None else _make(arch, dtype, dummy)
        self._held = _Held()
        tokens = (torch.arange(_TESTED) * 5 + 3) % arch.vocab
        try:
            wanted = _plain_logits(self._head, tokens)
            self._body = self._take_over(self._head)
            self._compare(self._stepwise_logits(arch, tokens), wanted)
        except Exception as error:  # whatever a model's code raises
            raise refused(folder, arch.config, error) from error

    def states(self, batch: BatchTensors, cache: list[LayerCache]) -> Tensor:
        """Run one step; see ``Forward``."""
        attention = Attention(batch, self._unrotated, self._unrotated, cache[0].keys.shape[2])
        token = _step.set(_Step(attention, zip(self._layers, cache, strict=True)))
        try:
            output = self._body(input_ids=batch.tokens[None], position_ids=batch.positions[None], use_cache=False, return_dict=True)
        finally:
            _step.reset(token)
        self._held.kind = type(output)
        return output.last_hidden_state[0].float()

    def logits(self, states: Tensor) -> Tensor:
        """Logits of rows of ``states``; see ``Forward``."""
        self._held.states = states[None].to(self._dtype)
        return self._head(input_ids=torch.zeros(1, len(states), dtype=torch.long), use_cache=False, return_dict=True).logits[0].float()

    def _take_over(self, model: PreTrainedModel) -> nn.Module:
        """Part the body from the head, and have it attend in the paged cache."""
        model.set_attn_implementation(PAGED)
        name, body = body_of(model)
        model.set_submodule(name, self._held)
        return body

    def _stepwise_logits(self, arch: HfArchitecture, tokens: Tensor) -> Tensor:
        cache = allocate(arch, _TESTED, _BLOCK, self._dtype)
        steps = (_chunk(tokens, 0, _FIRST), _chunk(tokens, _FIRST, _TESTED))
        return self.logits(torch.cat([self.states(BatchTensors.of(Plan((chunk,)), _BLOCK), cache) for chunk in steps]))

    def _compare(self, logits: Tensor, wanted: Tensor) -> None:
        """A few tokens in two steps must get the logits that transformers alone gives them in one."""
        difference, top = (float(value.abs().max()) for value in (logits - wanted, wanted))
        if not difference <= _TOLERANCE[self._dtype] * top:
            raise ModelError(
                f"in two steps its logits differ by {difference:.3g} from those in one, the largest being {top:.3g}: it keeps more than "
                "keys and values between steps, or does not go by position_ids"
            )


class _Held(nn.Module):
    """Stands in for the body of a model, so that the rest turns any hidden states into logits by its own rules."""

    states: Tensor
    kind: type[ModelOutput]

    def forward(self, *_: Any, **__: Any) -> ModelOutput:
        return self.kind(last_hidden_state=self.states)


class _Step:
    """A step on its way through the layers."""

    def __init__(self, attention: Attention, layers: Iterator[tuple[AttentionLayer, LayerCache]]) -> None:
        self._attention = attention
        self._layers = layers

    def attend(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """The next layer: q [1, H, T, D], k and v [1, KV heads, T, D] -> [1, T, H, D]."""
        layer, cache = next(self._layers)
        qkv = torch.cat([query[0], key[0], value[0]]).transpose(0, 1).flatten(1).float()
        out = self._attention(qkv.contiguous(), cache, layer.rule)
        return out.to(query.dtype).view(1, query.shape[2], query.shape[1], query.shape[3])


_step: ContextVar[_Step] = ContextVar("step")


def _attend(module: nn.Module, query: Tensor, key: Tensor, value: Tensor, *_: Any, **__: Any) -> tuple[Tensor, None]:
    return _step.get().attend(query, key, value), None


AttentionInterface.register(PAGED, _attend)


def _load(arch: HfArchitecture, folder: Path, dtype: torch.dtype) -> PreTrainedModel:
    try:
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            folder,
            config=arch.config,
            dtype=dtype,
            attn_implementation="eager",
            use_safetensors=True,
            local_files_only=True,
            output_loading_info=True,
            ignore_mismatched_sizes=True,
        )
    except Exception as error:  # safetensors', the library's and the model class's own errors
        raise ModelError(f"transformers cannot load {folder}: {said(error)}; download or save the model again") from error
    model, report = loaded
    wrong = sorted({*report["missing_keys"], *(key for key, *_ in report["mismatched_keys"])})
    if wrong:
        raise ModelError(f"{folder} lacks {', '.join(map(str, wrong[:3]))} in the shape that {arch.name} calls for; save the model again")
    return model.eval()


def _make(arch: HfArchitecture, dtype: torch.dtype, weights: DummyWeights) -> PreTrainedModel:
    with no_init_weights():
        model = AutoModelForCausalLM.from_config(arch.config, dtype=dtype, attn_implementation="eager").eval()
    model.tie_weights()
    for name, parameter in model.named_parameters():
        parameter.data = weights.read(name, *parameter.shape)
    return model


def _plain_logits(model: PreTrainedModel, tokens: Tensor) -> Tensor:
    return model(input_ids=tokens[None], use_cache=False, return_dict=True).logits[0].float()


def _chunk(tokens: Tensor, start: int, end: int) -> Chunk:
    blocks = tuple(range(-(-end // _BLOCK)))
    return Chunk("check", tuple(tokens[start:end].tolist()), start, blocks, samples=True, params=SamplingParams(temperature=0), seed=0)
