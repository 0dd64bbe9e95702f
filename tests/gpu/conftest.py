"""What needs a GPU: skipped where there is none. Nothing here runs kernels in this process, whose Triton is interpreted."""

from __future__ import annotations

from collections.abc import Iterator

import pytest


@pytest.fixture(scope="session", autouse=True)
def on_gpu() -> Iterator[None]:
    """Children compile their kernels."""
    import torch  # not where these tests are only collected

    if not torch.cuda.is_available():
        pytest.skip("torch sees no GPU")
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("TRITON_INTERPRET", raising=False)
        yield
