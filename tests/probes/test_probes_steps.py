"""The step probe: obeys the core's contract, and its figures add up."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from checksum import VOCAB, build_core, build_runner, drain

from mqlab.engine import echo
from mqlab.engine.core import Core, step
from mqlab.errors import InvalidRequest
from mqlab.plan import Plan, SampledTokens
from mqlab.probes.recording import Recording
from mqlab.probes.steps import MeteredCore
from mqlab.record.events import EventLog, read_events
from mqlab.types import Call, Reply, Request, SamplingParams, Step
from mqlab.wire.spec import Spec
from mqlab.wire.wiring import Wiring


def echo_core(**changes: Any) -> Core:
    return echo.build(vocab_size=VOCAB, max_model_len=128, num_blocks=64, block_size=4, max_num_seqs=4, **changes)


class SamplingRunner:
    """A runner that draws through a sampler of its own, as the torch runner does."""

    def __init__(self, **config: Any) -> None:
        self._inner = build_runner(**config)
        self.info, self.config = self._inner.info, self._inner.config
        self.sampler = tuple

    def launch(self, plan: Plan) -> Any:
        return _Flight(self, self._inner.launch(plan))

    def close(self) -> None:
        self._inner.close()


class _Flight:
    def __init__(self, runner: SamplingRunner, inner: Any) -> None:
        self._runner, self._inner = runner, inner

    def wait(self) -> SampledTokens:
        sampled = self._inner.wait()
        return SampledTokens(self._runner.sampler(sampled.tokens), sampled.rounds)


def engine_core() -> Core:
    runner: Any = SamplingRunner()
    return build_core(runner)


def ahead_core() -> Core:
    """Launches a step while another is in flight."""
    runner: Any = SamplingRunner(async_scheduling=True)
    return build_core(runner)


def metered(folder: Path, target: str, *wraps: Spec) -> Core:
    return Wiring(Spec(f"test_probes_steps_cores:{target}"), wraps).recorded(folder).build_core()


@pytest.fixture(autouse=True)
def cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make this module's factories importable by name."""
    import sys
    import types

    module = types.ModuleType("test_probes_steps_cores")
    module.__dict__.update(echo_core=echo_core, engine_core=engine_core, ahead_core=ahead_core)
    monkeypatch.setitem(sys.modules, "test_probes_steps_cores", module)


def ask(id: str, tokens: int = 5, prompt: int = 3) -> Request:
    return Request(id, list(range(3, 3 + prompt)), SamplingParams(max_tokens=tokens, ignore_eos=True))


def counters(folder: Path) -> dict[str, int]:
    recording = Recording(folder)
    (page,) = recording.read().values()
    recording.close()
    return page


def rows(folder: Path) -> Any:
    (path,) = folder.glob("engine-*.step.events")
    return read_events(path).rows


def lines(folder: Path) -> list[dict[str, Any]]:
    (path,) = folder.glob("engine-*.requests.jsonl")
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.parametrize("target", ["echo_core", "engine_core", "ahead_core"])
def test_it_answers_as_the_core_inside(tmp_path: Path, target: str) -> None:
    plain, core = globals()[target](), metered(tmp_path, target)
    assert type(core) is MeteredCore
    for each in (plain, core):
        for i in range(6):
            each.add(ask(f"r{i}", tokens=i + 1, prompt=i + 1))
        with pytest.raises(InvalidRequest):
            each.add(ask("r0"))
    assert drain(core).answers == drain(plain).answers
    assert core.calls["stats"]().generation_tokens == plain.calls["stats"]().generation_tokens == 21
    assert not core.has_work
    core.close()
    core.close()


@pytest.mark.parametrize("target", ["echo_core", "engine_core"])
def test_steps_and_tokens_are_counted(tmp_path: Path, target: str) -> None:
    core = metered(tmp_path, target)
    for i in range(3):
        core.add(ask(f"r{i}"))
    drain(core)
    page, found = counters(tmp_path), rows(tmp_path)
    assert page["step.count"] == len(found) == core.calls["stats"]().steps
    assert page["step.new_tokens"] == found[:, 8].sum() == 15
    assert page["step.tokens"] == found[:, 7].sum() == (15 if target == "echo_core" else 3 * 3 + 3 * 4)
    for place, part in enumerate(("schedule_ns", "launch_ns", "device_ns", "sample_ns", "output_ns"), 1):
        assert page[f"step.{part}"] == found[:, place].sum()
    assert (page["step.launch_ns"] > 0) == (page["step.sample_ns"] > 0) == (target == "engine_core")
    assert (found[1:, 0] >= found[:-1, 0] + found[:-1, 1:6].sum(1)).all(), "parts of a step follow each other, and so do steps"
    assert (page["probe.steps.events"], page["probe.steps.dropped"]) == (len(found), 0)
    assert page["probe.steps.ns"] > 0
    core.close()


def test_what_the_device_takes_is_its_own_and_faults_inside_are_measured(tmp_path: Path) -> None:
    core = metered(tmp_path, "echo_core", Spec("mqlab.probes.faults:FaultyCore", {"slow_step": 0.01}))
    core.add(ask("a", tokens=2))
    drain(core)
    assert (rows(tmp_path)[:, 3] >= 10_000_000).all()
    assert "hang" in core.calls
    core.close()


@pytest.mark.parametrize("target", ["echo_core", "engine_core", "ahead_core"])
def test_a_request_is_scheduled_with_its_first_step(tmp_path: Path, target: str) -> None:
    """Four at once, or eight: the rest waits until one ends. A long prompt's first step is not the one of its first token."""
    core = metered(tmp_path, target)
    for i in range(12):
        core.add(ask(f"r{i}", tokens=3 + i, prompt=3))
    drain(core)
    found = {line["id"]: line for line in lines(tmp_path)}
    begins = rows(tmp_path)[:, 0].tolist()
    assert [line["id"] for line in lines(tmp_path)] == [f"r{i}" for i in range(12)], "first come, first served"
    assert all(line["scheduled_ns"] in begins and line["added_ns"] <= line["scheduled_ns"] for line in found.values())
    assert found["r0"]["scheduled_ns"] == begins[0]
    assert found["r11"]["scheduled_ns"] > found["r0"]["scheduled_ns"]
    page = counters(tmp_path)
    assert page["request.scheduled"] == 12
    assert page["request.queue_ns"] == sum(line["scheduled_ns"] - line["added_ns"] for line in found.values())
    core.close()


def test_a_request_that_is_aborted_while_it_waits_is_never_scheduled(tmp_path: Path) -> None:
    core = metered(tmp_path, "echo_core")
    for i in range(6):
        core.add(ask(f"r{i}"))
    step(core)
    core.abort(("r5",))
    drain(core)
    assert [line["id"] for line in lines(tmp_path)] == ["r0", "r1", "r2", "r3", "r4"]
    core.close()


def test_what_comes_in_flight_waits_as_in_the_core_inside(tmp_path: Path) -> None:
    core = metered(tmp_path, "echo_core")
    core.add(ask("a"))
    flight = core.begin()
    core.add(ask("b"))
    assert core.abort(("a",)) == []
    assert core.call(Call(3, "ping")) == []
    aborted, reply = core.finish(flight.wait())
    assert isinstance(aborted, Step) and [delta.finish for delta in aborted.deltas] == ["abort"]
    assert reply == Reply(3, True)
    assert drain(core).answers[0, "b"].finish == "length"
    core.close()


def test_a_probe_that_fails_is_dropped_and_the_core_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*args: int) -> None:
        raise OSError(28, "No space left on device")

    core = metered(tmp_path, "echo_core")
    monkeypatch.setattr(EventLog, "extend", full)
    core.add(ask("a"))
    core.add(ask("b"))
    assert {answer.finish for answer in drain(core).answers.values()} == {"length"}
    assert [record.message for record in caplog.records] == ["the probe steps is dropped: OSError: [Errno 28] No space left on device"]
    core.close()


def test_a_folder_that_cannot_be_made_leaves_the_plain_core(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("")
    core = metered(tmp_path / "file" / "folder", "echo_core")
    assert type(core) is type(echo_core())
    assert "steps is dropped" in caplog.text
