"""A session's model comes and goes; the session stays."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from mqlab.contract.waiting import until_sync
from mqlab.errors import CallError, ModelUnavailable
from mqlab.lab.session import Session
from mqlab.wire.registry import Registry

Start = Callable[..., Session]
HELLO = "Hello there world"


@pytest.mark.parametrize("topology", ["inproc", "v1"])
def test_models_come_and_go(start: Start, model_folder: Path, topology: str) -> None:
    lab = start(topology)
    pid = lab.info.pid
    assert lab.generate_sync(HELLO, max_tokens=3).text == HELLO
    freed = lab.unload()
    assert freed.rss_after > 0 and "MiB" in repr(freed)
    assert lab.state() == ("unloaded", "") and "unloaded" in repr(lab) and "no KV cache: unloaded" in lab._repr_mimebundle_()["text/html"]
    assert "unloaded" in repr(lab.dashboard())
    with pytest.raises(ModelUnavailable):
        lab.generate_sync(HELLO, max_tokens=3)
    assert lab.stats().blocks_total == 0 and lab.health().ok
    info = lab.load("second", path=str(model_folder), num_blocks=9)
    assert lab.info == info and (info.name, info.epoch, info.pid) == ("second", 2, pid)
    assert lab.state() == ("ready", "") and "second over" in repr(lab) and "· second ·" in repr(lab.dashboard())
    lab.reset_prefix_cache()
    assert lab.generate_sync(HELLO, max_tokens=3).text == HELLO
    lab.sleep()
    assert lab.state()[0] == "asleep"
    assert lab.wake_up() == info
    assert lab.generate_sync(HELLO, max_tokens=3).text == HELLO
    with pytest.raises(CallError, match="no folder"):
        lab.load("third", path="/no/such")
    assert lab.state()[0] == "ready"


def test_others_find_it_under_its_new_name(start: Start, model_folder: Path) -> None:
    lab = start("v1")
    lab.load("second", path=str(model_folder))
    until_sync(lambda: [entry.model for entry in Registry().entries() if str(entry.pid) in lab.addresses] == ["second"])
