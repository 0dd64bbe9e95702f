"""The race against its float64 reference."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from mqlab_kernels.race_cpu import race, race_reference


@settings(deadline=None, max_examples=200)
@given(weights=st.lists(st.floats(1e-12, 1.0), min_size=1, max_size=60), key=st.integers(0, 2**64 - 1), first=st.integers(0, 100_000))
def test_the_winner_is_the_reference_s(weights: list[float], key: int, first: int) -> None:
    tokens = np.arange(first, first + len(weights))
    assert race(np.array(weights), tokens, np.uint64(key)) == race_reference(np.array(weights), tokens, key)


@given(key=st.integers(0, 2**64 - 1))
def test_a_token_s_noise_does_not_depend_on_its_place(key: int) -> None:
    weights, tokens = np.array([0.2, 0.3, 0.5]), np.array([11, 7, 3])
    order = [2, 0, 1]
    assert tokens[race(weights, tokens, np.uint64(key))] == tokens[order][race(weights[order], tokens[order], np.uint64(key))]


@given(key=st.integers(0, 2**64 - 1))
def test_weight_zero_never_wins(key: int) -> None:
    assert race(np.array([0.0, 1e-300, 0.0]), np.arange(3), np.uint64(key)) == 1
