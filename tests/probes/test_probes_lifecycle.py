"""The step probe of a core whose model comes and goes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from checksum import drain

from mqlab.engine.core import Core, step
from mqlab.probes.recording import Recording
from mqlab.types import Call, Request, SamplingParams
from mqlab.wire.spec import Spec
from mqlab.wire.wiring import Wiring

LONG = SamplingParams(max_tokens=None, ignore_eos=True)
SIX = SamplingParams(max_tokens=6, ignore_eos=True)


def counters(folder: Path) -> dict[str, int]:
    recording = Recording(folder)
    (page,) = recording.read().values()
    recording.close()
    return page


def call(core: Core, method: str, *args: Any) -> None:
    core.call(Call(1, method, args))
    while core.loading:
        core.finish(core.begin().wait())


@pytest.mark.parametrize("ahead", [False, True])
def test_loads_are_no_steps_and_each_runner_is_metered(tmp_path: Path, ahead: bool, caplog: pytest.LogCaptureFixture) -> None:
    core = Wiring(Spec("reloading:build_reloading", {"async_scheduling": ahead})).recorded(tmp_path).build_core()
    for count, change in enumerate((("load", "second"), ("sleep", 1), ("sleep", 2), ("unload",)), 1):
        for i in range(12):
            core.add(Request(f"r{i}", [3, 4, 5], LONG))
        step(core)
        call(core, *change)
        call(core, "wake_up" if change[0] == "sleep" else "load", *(() if change[0] == "sleep" else ("next",)))
        launched = counters(tmp_path)["step.launch_ns"]
        for i in range(12):
            core.add(Request(f"r{i}", [3, 4, 5], SIX))
        drain(core)
        page, stats = counters(tmp_path), core.calls["stats"]()
        assert page["step.count"] == stats.steps and page["step.new_tokens"] == stats.generation_tokens
        assert page["step.launch_ns"] > launched, "whichever runner it was"
        assert page["request.scheduled"] > 12 * count
    core.close()
    assert not [record for record in caplog.records if record.name == "mqlab.probes"], "no probe was dropped"
