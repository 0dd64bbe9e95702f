"""Every topology through every check of the contract."""

from __future__ import annotations

import pytest
from rigs import RIGS

from mqlab.contract import abort, calls, close, death, embed, exit, model_lifecycle, requests, start
from mqlab.contract.rig import Check, Rig, applies, checks_of
from mqlab.contract.themes import THEMES

WITH_HELPERS = {
    start.check_start_returns_when_healthy,
    start.check_build_failure_says_why,
    start.check_refusal_is_raised_as_it_is,
    start.check_killed_while_loading,
    start.check_helper_killed_while_loading,
    start.check_close_during_start,
    requests.check_ten_thousand_requests,
    requests.check_bad_requests_are_refused_alone,
    requests.check_duplicate_id_is_refused,
    requests.check_slow_reader_costs_only_its_tokens,
    abort.check_abort_by_id,
    abort.check_abort_before_intake,
    abort.check_raising_abort_is_fatal_to_all,
    calls.check_calls_while_streams_run,
    calls.check_failing_calls_harm_nobody,
    embed.check_embeddings_beside_streams,
    model_lifecycle.check_unloaded_engine_lives_on,
    model_lifecycle.check_sleep_and_wake_up,
    model_lifecycle.check_kill_while_loading_is_seen,
    death.check_fatal_begin,
    death.check_kill_is_seen,
    death.check_kill_of_a_helper_is_seen,
    death.check_frozen_engine_is_seen,
    death.check_frozen_helper_is_seen,
    death.check_hang_that_holds_the_gil_is_seen,
    close.check_close_leaves_nothing,
    close.check_close_ends_streams_and_calls,
    close.check_close_of_a_frozen_engine,
    close.check_close_of_a_frozen_helper,
    close.check_dropped_client_gives_all_back,
    close.check_client_dropped_after_death,
    exit.check_parent_killed_while_streams_run,
    exit.check_parent_killed_beside_a_stopped_engine,
    exit.check_exit_without_close_with_streams,
}
"""What another process between front and engine may make go wrong; the rest is tried there with the long ones."""


ON_THEIR_OWN_SOCKETS = {
    start.check_build_failure_says_why,
    start.check_refusal_is_raised_as_it_is,
    requests.check_refused_and_failed_requests_are_alone,
    requests.check_a_burst_leaves_readers_their_turns,
    abort.check_abort_by_id,
    abort.check_abort_before_intake,
    abort.check_an_id_is_free_after_an_abort_at_any_moment,
    abort.check_abort_at_random_moments,
    calls.check_failing_calls_harm_nobody,
    embed.check_embeddings_beside_streams,
    model_lifecycle.check_another_model_is_loaded,
    model_lifecycle.check_live_requests_end_with_their_model,
    model_lifecycle.check_changes_keep_their_order,
    model_lifecycle.check_loading_is_told_and_refuses_at_once,
    death.check_fatal_begin,
    death.check_kill_is_seen,
    close.check_close_ends_streams_and_calls,
    close.check_close_of_a_frozen_engine,
    close.check_dropped_client_gives_all_back,
    exit.check_exit_without_close_with_streams,
}
"""What a socket for each request, abort and call may make go wrong, above all their order."""

IN_A_THREAD = {
    start.check_start_returns_when_healthy,
    start.check_build_failure_says_why,
    start.check_refusal_is_raised_as_it_is,
    start.check_close_during_start,
    requests.check_ten_thousand_requests,
    requests.check_tokens_come_as_they_are_made,
    requests.check_refused_and_failed_requests_are_alone,
    requests.check_a_burst_leaves_readers_their_turns,
    abort.check_abort_by_id,
    abort.check_abort_before_intake,
    abort.check_an_id_is_free_after_an_abort_at_any_moment,
    abort.check_abort_at_random_moments,
    abort.check_raising_abort_is_fatal_to_all,
    calls.check_calls_while_streams_run,
    calls.check_call_timeout_behind_a_slow_step,
    embed.check_embeddings_beside_streams,
    model_lifecycle.check_another_model_is_loaded,
    model_lifecycle.check_live_requests_end_with_their_model,
    model_lifecycle.check_changes_keep_their_order,
    model_lifecycle.check_loading_is_told_and_refuses_at_once,
    death.check_fatal_begin,
    death.check_hang_is_seen,
    death.check_what_came_before_death_can_be_read,
    death.check_dead_engine_does_no_more_steps,
    close.check_close_leaves_nothing,
    close.check_close_ends_streams_and_calls,
    close.check_drain_lets_streams_finish,
    close.check_dropped_client_gives_all_back,
    close.check_client_dropped_with_streams,
    close.check_client_dropped_after_death,
    exit.check_exit_without_close_with_streams,
    exit.check_exit_of_a_global_client,
}
"""What a loop of its own beside the event loop, in one process, may make go wrong: wake-ups, order, and how it ends."""

CHOSEN = {"rpc": ON_THEIR_OWN_SOCKETS, "rpc-proxy": ON_THEIR_OWN_SOCKETS, "thread": IN_A_THREAD}
"""Of layouts that share most with another, what is tried each time; the rest is tried with the long ones."""


def cases() -> list[object]:
    """Each check with each rig that it says something about; the second codec only where messages matter."""
    return [
        pytest.param(
            check,
            rig,
            id=f"{rig.name}-{check.__name__.removeprefix('check_')}",
            marks=[pytest.mark.full] if _takes_long(check, rig) else [],
        )
        for theme in THEMES
        for check in checks_of(theme)
        for rig in RIGS
        if applies(check, rig) and (rig.codec == "msgpack" or hasattr(check, "every_codec"))
    ]


def _takes_long(check: Check, rig: Rig) -> bool:
    if rig.name in CHOSEN and check not in CHOSEN[rig.name]:
        return True
    return hasattr(check, "full") or (bool(rig.helpers) and (check not in WITH_HELPERS or rig.codec != "msgpack"))


@pytest.mark.parametrize(("check", "rig"), cases())
async def test_contract(check: Check, rig: Rig) -> None:
    await check(rig)
