"""The race against its float64 reference."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mqlab_kernels.peaks_cpu import BLOCK
from mqlab_kernels.race_cpu import ALL, race, race_reference

LOGITS = st.lists(st.floats(-20, 20, width=32), min_size=1, max_size=5 * BLOCK)
KEYS = st.integers(0, 2**64 - 1)


def winner(logits: np.ndarray, key: int, scale: float = 1.0, least: float = -np.inf, end: int = ALL, attempt: int = 0) -> int:
    peaks = np.maximum.reduceat(logits, np.arange(0, len(logits), BLOCK))
    return race(logits, peaks, logits.max(), np.float32(scale), np.float32(least), end, np.uint64(key), attempt)


@settings(deadline=None, max_examples=300)
@given(logits=LOGITS, key=KEYS, scale=st.floats(0.25, 4), attempt=st.integers(0, 5), data=st.data())
def test_the_winner_is_the_reference_s(logits: list[float], key: int, scale: float, attempt: int, data: st.DataObject) -> None:
    """Within a limit too: tokens behind one of them in the order of logits do not take part."""
    row = np.array(logits, np.float32)
    behind = data.draw(st.integers(0, len(row) - 1))
    least, end = (-np.inf, ALL) if behind == row.argmax() else (row[behind], behind)
    assert winner(row, key, scale, least, end, attempt) == race_reference(row, float(np.float32(scale)), least, end, key, attempt)


@given(key=KEYS)
def test_a_token_s_noise_does_not_depend_on_its_neighbours(key: int) -> None:
    """Tokens that cannot win may come and go."""
    row = np.full(3 * BLOCK, -np.inf, np.float32)
    row[[5, 70, 71, 150]] = [1, 2, 3, 1]
    more = row.copy()
    more[[6, 72, 100, 151]] = -80
    assert winner(row, key) == winner(more, key)


@given(key=KEYS)
def test_minus_infinity_never_wins(key: int) -> None:
    row = np.full(2 * BLOCK + 3, -np.inf, np.float32)
    row[100] = -50
    assert winner(row, key) == 100


@pytest.mark.parametrize("attempt", [0, 1])
def test_blocks_and_tokens_win_as_often_as_their_weights_say(attempt: int) -> None:
    """Two tokens of one block against one of another: weights 1, 2 and 3."""
    row = np.full(2 * BLOCK, -np.inf, np.float32)
    row[[0, 1, BLOCK]] = np.log([1, 2, 3])
    rng = np.random.default_rng(0)
    wins = np.bincount([winner(row, int(key), attempt=attempt) for key in rng.integers(2**64, size=6000, dtype=np.uint64)])
    np.testing.assert_allclose(wins[[0, 1, BLOCK]], [1000, 2000, 3000], atol=150)
