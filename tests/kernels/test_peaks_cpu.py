"""What one look at all logits finds."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from mqlab_kernels.draw_cpu import kth_largest
from mqlab_kernels.peaks_cpu import BLOCK, survey

FLOATS = st.floats(width=32, allow_nan=False)


def surveyed(logits: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rows, vocab = logits.shape
    peaks, likeliest, sums = np.empty((rows, -(-vocab // BLOCK)), np.float32), np.empty(rows, np.int64), np.empty(rows, np.float32)
    survey(logits, peaks, likeliest, sums)
    return peaks, likeliest, sums


@settings(deadline=None)
@given(logits=hnp.arrays(np.float32, st.tuples(st.integers(1, 4), st.integers(1, 3 * BLOCK)), elements=FLOATS, fill=FLOATS))
def test_peaks_and_likeliest_tokens(logits: np.ndarray) -> None:
    peaks, likeliest, _ = surveyed(logits)
    starts = np.arange(0, logits.shape[1], BLOCK)
    np.testing.assert_array_equal(peaks, np.maximum.reduceat(logits, starts, axis=1))
    np.testing.assert_array_equal(likeliest, logits.argmax(-1))


@pytest.mark.parametrize("vocab", [1, BLOCK, 64 * BLOCK, 64 * BLOCK + 1, 150 * BLOCK - 1])
@pytest.mark.parametrize("broken", [np.nan, -np.nan, np.inf])
def test_sums_tell_of_logits_that_are_not_finite(vocab: int, broken: float) -> None:
    logits = np.zeros((3, vocab), np.float32)
    logits[1, vocab // 2] = broken
    logits[2, -1] = broken
    assert np.isfinite(surveyed(logits)[2]).tolist() == [True, False, False]


@settings(deadline=None)
@given(
    values=hnp.arrays(np.float32, st.integers(1, 200), elements=FLOATS | st.sampled_from([0.0, 1.0]), fill=st.nothing()),
    share=st.floats(0, 1),
    slack=st.integers(0, 10),
)
def test_the_kth_largest_splits_the_values(values: np.ndarray, share: float, slack: int) -> None:
    values = values + np.float32(0)  # no negative zero
    k = 1 + round(share * (len(values) - 1))
    found, reached = kth_largest(values, k, slack, np.float32(-np.inf))
    assert k <= reached == (values >= found).sum()
    assert reached <= k + slack or found == np.sort(values)[-k]
