"""A comparison as a whole: arms in processes of their own, in turns, the same tokens from all."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import psutil
import pytest
import uvloop

from mqlab import cli
from mqlab.bench import compare as module
from mqlab.bench.arm_run import Run
from mqlab.bench.arm_work import Work
from mqlab.bench.arms import make_arms
from mqlab.bench.compare import compare
from mqlab.bench.compare_options import CompareConfig
from mqlab.config import EngineConfig, Timing
from mqlab.contract.waiting import until_sync
from mqlab.errors import BenchError, ConfigError, ModelError
from mqlab.probes.recording import Recording
from mqlab.record.trace import Trace
from mqlab.topologies import TOPOLOGIES

SMALL: dict[str, Any] = {"rounds": 3, "num_prompts": 6, "input_len": 5, "output_len": 4}
ECHO = EngineConfig(model="echo")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Recordings go where they are swept."""
    monkeypatch.setenv("MQLAB_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_every_layout_gives_the_same_tokens_and_a_figure(cache: Path) -> None:
    arms = ["sync", *TOPOLOGIES]
    result = compare(ECHO, CompareConfig(topologies=",".join(arms), **SMALL))
    assert list(result.runs) == arms
    assert result.void == []
    assert result.differing() == dict.fromkeys([*TOPOLOGIES, "sync without probes"], 0)
    assert {len(runs) for runs in result.runs.values()} == {3}
    assert {run.output_tokens for runs in result.runs.values() for run in runs} == {24}
    assert len({run.outputs[0] for run in result.runs["mq"]}) == 3, "every round has prompts of its own"
    assert [set(run.cpu) for run in result.runs["v1"]] == [{"front", "engine"}] * 3
    assert [set(run.cpu) for run in result.runs["detok_ring"]] == [{"front", "detokenizer", "engine"}] * 3
    assert [set(run.cpu) for name in ("sync", "aio") for run in result.runs[name]] == [{"front"}] * 6
    folders = [cache / "recordings" / arm["recording"] for arm in result.meta["arms"] if arm["recording"]]
    assert len({folder.parent for folder in folders}) == 1
    merged = Trace.merge(Trace.of(folder) for folder in folders)
    assert [run.rpartition(" ")[2] for run in merged.runs] == arms and merged.meta["notes"] == []
    recorded = [Recording(folder) for folder in folders]
    finished = [sum(page.get("request.finished", 0) for page in recording.read().values()) for recording in recorded]
    for recording in recorded:
        recording.close()
    assert finished == [0, *[3 * 6 + 6] * len(TOPOLOGIES)], "three rounds and a warm-up, in each arm that has a client"


@pytest.mark.parametrize("vary", ["output=delta,cumulative", "num_scheduler_steps=1,4", "concurrency=0,2"])
def test_other_settings_are_compared_alike(vary: str) -> None:
    result = compare(ECHO, CompareConfig(vary=vary, topology="mq", control=False, **SMALL))
    assert result.void == []
    assert result.probe_cost() is None
    assert len(result.rows()) == 2


def test_the_command_prints_the_verdict_and_writes_the_record(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "result.json"
    line = "compare echo --topologies aio,v1 --rounds 3 --num-prompts 4 --input-len 3 --output-len 3 --max-num-seqs 2 --output-json"
    assert cli.main([*line.split(), str(file)]) == 0
    shown = capsys.readouterr()
    record = json.loads(file.read_text())
    assert record["verdict"] in shown.out
    assert "all arms gave the same tokens" in shown.out
    assert "probes cost" in shown.out
    assert list(record["runs"]) == ["aio", "v1", "aio without probes"]
    assert [arm["recording"] is not None for arm in record["meta"]["arms"]] == [True, True, False]
    assert record["meta"]["seed"] >= 0
    assert "9/9" in shown.err


def test_requests_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"9000 prompt and 4 new tokens needs 9004 tokens; 'echo' holds 8192: shorten"):
        compare(ECHO, CompareConfig(**{**SMALL, "input_len": 9000}))


def test_processes_are_held_to_their_cores() -> None:
    result = compare(ECHO, CompareConfig(vary="cores=none,0/0", topology="mq", control=False, **SMALL))
    assert list(result.runs) == ["cores=none", "cores=0/0"]
    with pytest.raises(ConfigError, match=r"^arm 'aio': --cores='0/1': front and engine are one process in this layout"):
        compare(ECHO, CompareConfig(topologies="aio,inproc", cores="0/1", **SMALL))


@pytest.mark.parametrize(
    ("topologies", "victim", "message"),
    [
        ("aio,mq", 0, r"arm 'aio' failed while it ran: its process was killed; where nobody did that, memory ran out"),
        ("mq,aio", 1, r"arm 'mq' failed while it ran: the engine died: engine process \d+ was killed by SIGKILL"),
    ],
    ids=["front", "engine"],
)
def test_an_arm_that_dies_ends_the_comparison(monkeypatch: pytest.MonkeyPatch, topologies: str, victim: int, message: str) -> None:
    original = module.ArmProcess.run

    async def kill_then_run(self: Any, work: Work) -> Run:
        if work.num_prompts == SMALL["num_prompts"]:
            front = psutil.Process(self._process.pid)
            [front, *front.children()][victim].kill()
        return await original(self, work)

    monkeypatch.setattr(module.ArmProcess, "run", kill_then_run)
    with pytest.raises(BenchError, match=message) as failure:
        compare(ECHO, CompareConfig(topologies=topologies, control=False, **SMALL))
    assert "Traceback" not in str(failure.value)
    until_sync(lambda: not psutil.Process().children(recursive=True))


def test_a_model_that_only_one_arm_names_is_looked_for_before_anything_starts() -> None:
    with pytest.raises(ModelError, match="no model is known as 'nowhere'"):
        compare(ECHO, CompareConfig(vary="model=echo,nowhere", **SMALL))


async def test_what_an_arm_s_engine_refuses_is_told_as_it_was_raised() -> None:
    arm = make_arms(EngineConfig(model="echo:/nowhere"), CompareConfig(topologies="sync,inproc", **SMALL), Timing())[0]
    async with module.launched(arm) as process:
        with pytest.raises(ModelError, match=r"^arm 'sync': .*/nowhere"):
            await process.ready()


def test_where_nothing_can_be_recorded_arms_run_all_the_same(cache: Path) -> None:
    cache.write_text("a file where the folder should be")
    result = compare(ECHO, CompareConfig(topologies="inproc,aio", **SMALL))
    assert result.void == [] and result.probe_cost() is None
    assert [arm["recording"] for arm in result.meta["arms"]] == [None, None]


def test_what_an_interpreter_prints_at_its_start_is_no_answer(noisy: None) -> None:
    assert compare(ECHO, CompareConfig(topologies="aio,inproc", control=False, **SMALL)).void == []


def test_a_file_that_cannot_be_written_is_told_before_the_work(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="its folder does not exist"):
        module.main(ECHO, CompareConfig(output_json=str(tmp_path / "no" / "r.json"), **SMALL), Timing())


@pytest.mark.parametrize("times", [1, 3])
@pytest.mark.parametrize("turns", range(1, 6))
def test_an_arm_that_is_cancelled_while_it_starts_leaves_no_process(turns: int, times: int) -> None:
    """The loop closes right after, so whoever waits for the child's end must have done so by then."""

    async def cancelled() -> list[psutil.Process]:
        async def starting() -> None:
            async with module.launched(arm):
                await asyncio.Event().wait()

        task = asyncio.create_task(starting())
        for _ in range(turns):
            await asyncio.sleep(0)
        for _ in range(times):
            task.cancel()
            await asyncio.sleep(0)
        await asyncio.wait({task})
        assert task.cancelled()
        return [child for child in psutil.Process().children() if child not in before]

    arm, before = make_arms(ECHO, CompareConfig(topologies="sync,inproc", **SMALL), Timing())[0], psutil.Process().children()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        assert runner.run(cancelled()) == []
