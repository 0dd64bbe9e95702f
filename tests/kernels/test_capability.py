"""What a launcher takes a GPU for when it chooses a config."""

from __future__ import annotations

import pytest
import torch
from mqlab_kernels.capability import capability


@pytest.mark.parametrize(("reported", "taken"), [((8, 0), 80), ((8, 9), 89), ((9, 0), 90), ((10, 0), 100), ((12, 0), 80)])
def test_a_gpu_with_little_shared_memory_is_taken_for_an_older_one(
    reported: tuple[int, int], taken: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: reported)
    capability.cache_clear()
    assert capability(torch.device("cuda", 0)) == taken
    capability.cache_clear()


def test_a_cpu_stands_for_an_h100() -> None:
    assert capability(torch.device("cpu")) == 90
