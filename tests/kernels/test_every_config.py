"""Whatever config of its sweep a kernel is compiled with, the answer is the same; the configs of other kernels are in their own tests."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from types import ModuleType

import pytest
import torch
from mqlab_kernels import paged_decode as decoding
from mqlab_kernels import qkv_rope_cache as fused
from mqlab_kernels import reshape_cache as storing
from mqlab_kernels import rotary as turning
from mqlab_kernels.kernel import Config
from paged_kv import assert_close, paged, uniform
from torch import Tensor


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return uniform(shape, torch.Generator().manual_seed(seed)).bfloat16()


def stored() -> list[Tensor]:
    """Of 9 KV heads, no multiple of what a program takes."""
    keys, values = torch.zeros(2, 2, 9, 16, 40).bfloat16()
    storing.reshape_and_cache(drawn(3, 9, 40), drawn(3, 9, 40, seed=1), keys, values, torch.tensor([17, -1, 2]))
    return [keys, values]


def turned() -> list[Tensor]:
    heads = drawn(2, 33, 40)
    turning.rotary(heads, torch.full((4, 10), 0.6), torch.full((4, 10), 0.8), torch.tensor([3, 0]))
    return [heads]


def turned_and_stored() -> list[Tensor]:
    keys, values = torch.zeros(2, 2, 3, 16, 40).bfloat16()
    angles = torch.full((4, 10), 0.6), torch.full((4, 10), 0.8)
    norms = {"q_norm": torch.linspace(0.5, 2, 40), "k_norm": torch.ones(40)}
    places = torch.tensor([3, 0]), torch.tensor([17, -1])
    return [fused.qkv_rope_cache(drawn(2, 17 * 40), *angles, *places, keys, values, heads=11, eps=1e-6, **norms), keys, values]


def constants_of(sweep: Iterable[Config]) -> list[Config]:
    """Configs that differ in more than warps and stages, of which the interpreter knows nothing."""
    return list({str(config.constants): config for config in sweep}.values())


def compiled_with(monkeypatch: pytest.MonkeyPatch, module: ModuleType, config: Config, choose: str = "choose") -> None:
    monkeypatch.setattr(module, choose, lambda constants, capability: config)


@pytest.mark.parametrize(
    ("module", "launch"), [(storing, stored), (turning, turned), (fused, turned_and_stored)], ids=lambda one: one.__name__
)
def test_heads_of_a_program_change_nothing(module: ModuleType, launch: Callable[[], list[Tensor]], monkeypatch: pytest.MonkeyPatch) -> None:
    shipped = launch()
    for config in constants_of(module.SWEEP):
        compiled_with(monkeypatch, module, config)
        for answer, expected in zip(launch(), shipped, strict=True):
            assert torch.equal(answer, expected), config


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("config", constants_of(decoding.SWEEP), ids=lambda config: str(config.constants["TILE"]))
def test_no_tile_changes_what_is_decoded(config: Config, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled_with(monkeypatch, decoding, config)
    for splits, window in ((1, 0), (3, 0), (1, 150)):
        decode([127, 0, 300], dtype, splits=splits, window=window)


@pytest.mark.parametrize("config", constants_of(decoding.COMBINE_SWEEP), ids=lambda config: str(config.constants["CHUNK"]))
def test_no_number_of_parts_at_once_changes_what_is_combined(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled_with(monkeypatch, decoding, config, "choose_combine")
    decode([128 * 9 + 1, 0, 300], torch.float32, splits=10)


def decode(contexts: list[int], dtype: torch.dtype, *, splits: int, window: int = 0) -> None:
    """The answer is the reference's."""
    case = paged(contexts, kv_heads=1, group=3, size=40, block=16, dtype=dtype)
    answer = decoding.paged_decode(*case.arguments, scale=0.2, splits=splits, window=window)
    assert_close(answer, decoding.paged_decode_reference(*case.arguments, scale=0.2, window=window))
