"""Metered layouts obey the contract as plain ones do."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from rigs import RIGS

from mqlab.client.base import BaseClient
from mqlab.contract import abort, calls, close, death, model_lifecycle, requests
from mqlab.contract.rig import Check, Rig, applies
from mqlab.probes.recording import Recording
from mqlab.wire.wiring import Wiring

CHECKS = (
    requests.check_tokens_come_as_they_are_made,
    requests.check_refused_and_failed_requests_are_alone,
    requests.check_duplicate_id_is_refused,
    abort.check_abort_by_id,
    calls.check_calls_while_streams_run,
    model_lifecycle.check_live_requests_end_with_their_model,
    death.check_fatal_begin,
    close.check_close_leaves_nothing,
    close.check_close_before_start,
    close.check_close_ends_streams_and_calls,
    close.check_open_and_close_many_times,
    close.check_dropped_client_gives_all_back,
    close.check_client_dropped_after_death,
)
LAYOUTS = [rig for rig in RIGS if rig.name in ("aio", "mq", "v1")]


@pytest.mark.parametrize("rig", LAYOUTS, ids=lambda rig: rig.name)
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__.removeprefix("check_"))
async def test_recorded_layouts_obey_the_contract(check: Check, rig: Rig, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def recorded(wiring: Wiring) -> BaseClient:
        return rig.make(wiring.recorded(tmp_path))

    assert applies(check, rig)
    await check(replace(rig, make=recorded))
    recording = Recording(tmp_path)
    assert any(writer.startswith("front-") for writer in recording.processes()), "it was recorded"
    recording.close()
    assert not [record for record in caplog.records if record.name == "mqlab.probes"], "no probe was dropped"
