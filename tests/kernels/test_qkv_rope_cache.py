"""Norm, rotation and the write into the cache in one kernel, in the interpreter, against float64."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from mqlab_kernels.kernel import CAPABILITIES
from mqlab_kernels.qkv_rope_cache import CASES, SWEEP, choose, qkv_rope_cache, qkv_rope_cache_reference
from paged_kv import assert_close, canaries_live, guarded, uniform
from torch import Tensor

from mqlab.model.rope import KINDS, Rope
from mqlab.model.rope_tables import rope_tables

SCALINGS: dict[str, dict[str, Any]] = {
    "default": {},
    "linear": {"factor": 4.0},
    "llama3": {"factor": 8.0, "original_len": 64},
    "yarn": {"factor": 4.0, "original_len": 32, "attention_factor": 1.14},
}
BLOCKS = 4


@dataclass(frozen=True)
class Launch:
    """A step of tokens, some with no slot, over a cache that is full of other tokens' keys."""

    tensors: tuple[Tensor, ...]
    heads: int
    norms: dict[str, Any]

    @property
    def pools(self) -> tuple[Tensor, Tensor]:
        return self.tensors[5], self.tensors[6]

    def run(self, function: Callable[..., Tensor], **options: Any) -> Tensor:
        return function(*self.tensors, heads=self.heads, **self.norms, **options)

    def copy(self) -> Launch:
        return Launch(tuple(tensor.clone() for tensor in self.tensors), self.heads, self.norms)


def launch_of(
    slots: list[int],
    *,
    heads: int = 3,
    kv_heads: int = 1,
    size: int = 32,
    rotary_dim: int = 32,
    block: int = 8,
    kind: str = "default",
    dtype: torch.dtype = torch.float32,
    normed: bool = False,
    seed: int = 0,
) -> Launch:
    random = torch.Generator().manual_seed(seed)
    qkv = uniform((len(slots), (heads + 2 * kv_heads) * size + 5), random).to(dtype)[:, 5:]
    keys, values = (uniform((BLOCKS, kv_heads, block, size), random).to(dtype) for _ in range(2))
    positions = torch.randint(0, 300, (len(slots),), generator=random)
    tables = rope_tables(Rope(theta=1e4, kind=kind, **SCALINGS[kind]), rotary_dim, 300)
    norms = {name: uniform((size,), random) + 1 for name in ("q_norm", "k_norm")} if normed else {}
    return Launch(
        (qkv, *tables, positions, torch.tensor(slots, dtype=torch.int64), keys, values), heads, norms | ({"eps": 1e-6} if normed else {})
    )


def check(launch: Launch) -> None:
    """Queries and the whole cache are the reference's; what has no slot is not stored."""
    mirror = launch.copy()
    size = launch.pools[0].shape[3]
    whole, out = guarded((len(launch.tensors[0]), launch.heads, size), launch.tensors[0].dtype)
    assert launch.run(qkv_rope_cache, out=out) is out
    assert_close(out, mirror.run(qkv_rope_cache_reference))
    for pool, expected in zip(launch.pools, mirror.pools, strict=True):
        assert_close(pool, expected.double())
    assert canaries_live(whole)


@st.composite
def launches(draw: st.DrawFn) -> Launch:
    size, block = draw(st.sampled_from([16, 32, 48, 64, 80, 96, 112, 128, 192, 256])), draw(st.sampled_from([1, 3, 8, 16, 48]))
    slots = draw(st.lists(st.integers(0, BLOCKS * block - 1), min_size=0, max_size=4, unique=True))
    return launch_of(
        draw(st.permutations([*slots, *[-1] * draw(st.integers(0, 2))])),
        heads=draw(st.sampled_from([1, 2, 7, 9, 16])),
        kv_heads=draw(st.sampled_from([1, 2, 5])),
        size=size,
        rotary_dim=draw(st.just(size) | st.integers(0, size // 2).map(lambda half: 2 * half)),
        block=block,
        kind=draw(st.sampled_from(KINDS)),
        dtype=draw(st.sampled_from([torch.float32, torch.float16, torch.bfloat16])),
        normed=draw(st.booleans()),
        seed=draw(st.integers(0, 2**32 - 1)),
    )


@settings(deadline=None, max_examples=10, derandomize=True)
@given(launches())
def test_fused_equals_the_reference(launch: Launch) -> None:
    check(launch)


@pytest.mark.full
@settings(deadline=None, max_examples=400)
@given(launches())
def test_many_fused_equal_the_reference(launch: Launch) -> None:
    check(launch)


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_scaling(kind: str) -> None:
    check(launch_of([5, -1, 30], kind=kind, rotary_dim=24))


def test_values_are_stored_bit_for_bit() -> None:
    launch = launch_of([9, 2], dtype=torch.bfloat16, normed=True)
    launch.run(qkv_rope_cache)
    stored = launch.pools[1][[1, 0], :, [1, 2]]
    assert torch.equal(stored, launch.tensors[0][:, -32:].view(2, 1, 32))


def test_a_cache_of_another_type_is_converted_to() -> None:
    launch = launch_of([9, 2])
    pools = tuple(pool.half() for pool in launch.pools)
    mixed = Launch((*launch.tensors[:5], *pools), launch.heads, {})
    mixed.run(qkv_rope_cache)
    launch.run(qkv_rope_cache_reference)
    for pool, expected in zip(pools, launch.pools, strict=True):
        assert_close(pool, expected.double())


def test_blocks_of_one_pool_of_keys_and_values() -> None:
    """Keys and values may be interleaved views: only their strides count."""
    launch = launch_of([9, 2, 31])
    both = torch.stack(launch.pools, 1)
    interleaved = Launch((*launch.tensors[:5], both[:, 0], both[:, 1]), launch.heads, {})
    interleaved.run(qkv_rope_cache)
    launch.run(qkv_rope_cache)
    assert torch.equal(both, torch.stack(launch.pools, 1))


def test_what_does_not_fit_is_refused() -> None:
    launch = launch_of([1])
    with pytest.raises(ValueError, match="columns"):
        Launch((launch.tensors[0][:, :-1], *launch.tensors[1:]), 3, {}).run(qkv_rope_cache)
    with pytest.raises(ValueError, match="norm"):
        launch.run(qkv_rope_cache, q_norm=torch.ones(32))
    with pytest.raises(ValueError, match="stride"):
        Launch((*launch.tensors[:6], launch.pools[1].transpose(0, 2)), 3, {}).run(qkv_rope_cache)


@pytest.mark.parametrize("capability", CAPABILITIES)
def test_every_case_has_a_config_of_the_sweep(capability: int) -> None:
    assert all(choose(case.constants, capability) in SWEEP for case in CASES)
