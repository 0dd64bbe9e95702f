"""A core in service: stamps, published counters, the engine's own log line."""

from __future__ import annotations

import logging

import pytest

from mqlab.engine.echo import build
from mqlab.engine.service import Service
from mqlab.types import Call, Reply, Request, SamplingParams, Step
from mqlab.wire.statspage import Phase, StatsPage

ALWAYS = 1e-9


def served(interval: float = 0.0) -> tuple[Service, StatsPage]:
    page = StatsPage()
    return Service(build(num_blocks=64), page, interval), page


def run(service: Service, request_id: str = "a") -> None:
    service.apply(Request(request_id, [5, 6, 7], SamplingParams(max_tokens=4)))
    while service.has_work:
        service.step()


def test_the_page_tells_phase_and_counters() -> None:
    service, page = served()
    assert page.stamp().phase is Phase.IDLE
    during: list[Phase] = []
    service.apply(Request("a", [5, 6, 7], SamplingParams(max_tokens=4)))
    while service.has_work:
        service.step(lambda: during.append(page.stamp().phase))
    assert set(during) == {Phase.STEP}
    assert page.stamp().phase is Phase.IDLE
    read = page.read()
    assert (read.prompt_tokens, read.generation_tokens, read.running, read.blocks_used, read.blocks_total) == (3, 4, 0, 0, 64)


def test_a_step_in_two_halves_is_stamped_too() -> None:
    service, page = served()
    service.apply(Request("a", [5, 6, 7], SamplingParams(max_tokens=1)))
    flight = service.begin()
    assert page.stamp().phase is Phase.STEP
    (step,) = service.finish(flight.wait())
    assert isinstance(step, Step) and step.deltas[0].tokens == [5]
    assert page.stamp().phase is Phase.IDLE


def test_the_engine_logs_what_it_did(caplog: pytest.LogCaptureFixture) -> None:
    service, _ = served(ALWAYS)
    with caplog.at_level(logging.INFO, "mqlab.engine"):
        run(service)
    text = caplog.text
    for part in ("tokens/s", "running 1", "waiting 0", "KV cache"):
        assert part in text


def test_an_idle_engine_is_silent(caplog: pytest.LogCaptureFixture) -> None:
    service, _ = served(ALWAYS)
    run(service)
    caplog.clear()
    with caplog.at_level(logging.INFO, "mqlab.engine"):
        service.idle()
        service.idle()
    assert caplog.text == ""


def test_interval_zero_turns_the_log_off(caplog: pytest.LogCaptureFixture) -> None:
    service, _ = served(0.0)
    with caplog.at_level(logging.INFO, "mqlab.engine"):
        run(service)
    assert caplog.text == ""


def test_replies_are_plain_whatever_the_codec() -> None:
    service, _ = served()
    (reply,) = service.apply(Call(3, "stats"))
    assert isinstance(reply, Reply) and reply.id == 3 and isinstance(reply.value, dict) and reply.value["blocks_total"] == 64
