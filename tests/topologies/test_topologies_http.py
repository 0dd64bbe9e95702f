"""Clients of a front process through the contract: whatever layout is behind it, a front is one more engine."""

from __future__ import annotations

from functools import partial

import pytest

from mqlab.client.http import FrontClient
from mqlab.contract import abort, calls, close, death, exit, model_lifecycle, requests, start
from mqlab.contract.rig import Check, Rig, applies, checks_of
from mqlab.contract.themes import THEMES

INPROC = Rig("http-inproc", partial(FrontClient, "inproc"))
V1 = Rig("http-v1", partial(FrontClient, "v1"))

# Launching and leaving is what every engine process has in common: of that, only what a front process adds to is tried each time.
FIRST_EXITS = {
    exit.check_parent_killed_while_streams_run,
    exit.check_parent_killed_beside_an_engine_that_holds_the_gil,
    exit.check_exit_without_close_with_streams,
    exit.check_exit_of_a_global_client,
}
LONG = {
    *(check for check in checks_of(exit) if check not in FIRST_EXITS),
    abort.check_abort_on_the_first_token,
    abort.check_abort_before_intake,
    abort.check_abort_while_waiting,
    abort.check_abort_twice,
    calls.check_profile_has_a_default_place,
    calls.check_profile_path_that_cannot_be,
    calls.check_call_timeout_behind_a_slow_step,
    close.check_open_and_close_many_times,
    close.check_drain_with_slow_idle_interval,
    close.check_error_in_the_block_passes_through,
    death.check_a_short_stop_is_not_death,
    death.check_a_step_of_twenty_seconds_is_not_death,
    death.check_quiet_is_not_death,
    death.check_slow_load_is_not_death,
    death.check_slow_step_is_not_death,
    model_lifecycle.check_changes_keep_their_order,
    model_lifecycle.check_failed_loads,
    model_lifecycle.check_sleep_and_wake_up,
    requests.check_end_and_stop_tokens,
    requests.check_readers_come_and_go,
    start.check_clients_are_independent,
}
NESTED = (
    start.check_build_failure_says_why,
    abort.check_abort_by_id,
    model_lifecycle.check_another_model_is_loaded,
    model_lifecycle.check_loading_is_told_and_refuses_at_once,
    death.check_fatal_wait,
    death.check_kill_is_seen,
    death.check_hang_that_holds_the_gil_is_seen,
    close.check_close_of_a_frozen_engine,
    close.check_client_dropped_after_death,
    exit.check_parent_killed_while_streams_run,
)
"""An engine process behind the front process: what a third process can make go wrong."""


def cases() -> list[object]:
    """Every check that says something, the long ones marked."""
    return [
        *(_case(check, INPROC, long=check in LONG) for theme in THEMES for check in checks_of(theme) if applies(check, INPROC)),
        *(_case(check, V1, long=False) for check in NESTED),
    ]


def _case(check: Check, rig: Rig, *, long: bool) -> object:
    name = f"{rig.name}-{check.__name__.removeprefix('check_')}"
    return pytest.param(check, rig, id=name, marks=[pytest.mark.full] if long else [])


@pytest.mark.parametrize(("check", "rig"), cases())
async def test_contract(check: Check, rig: Rig) -> None:
    await check(rig)
