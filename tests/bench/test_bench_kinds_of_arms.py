"""Arms without a client, over HTTP, and with a device: they all give the tokens of the others."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from mqlab.bench.arms import checked, make_arms
from mqlab.bench.compare import compare
from mqlab.bench.compare_options import CompareConfig
from mqlab.bench.memory import pss_mb
from mqlab.config import EngineConfig, Timing
from mqlab.errors import ConfigError

SMALL: dict[str, Any] = {"rounds": 3, "num_prompts": 8, "lengths": "sharegpt", "input_len": 12, "output_len": 10, "control": False}


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Recordings go where they are swept."""
    monkeypatch.setenv("MQLAB_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def echo(model_folder: Path) -> EngineConfig:
    """Says its prompt again, with a tokenizer."""
    return EngineConfig(model=f"echo:{model_folder}", max_num_seqs=16)


def test_stepping_the_core_gives_the_tokens_of_layouts_and_one_message_for_each(echo: EngineConfig) -> None:
    result = compare(echo, CompareConfig(topologies="sync,aio,detok_chain", detokenize="front", rate=400.0, **SMALL))
    assert result.void == [] and result.differing() == {"aio": 0, "detok_chain": 0}
    for arm, runs in result.runs.items():
        assert {run.output_tokens for run in runs} == {80}
        assert all(1 <= run.messages <= 80 for run in runs) and all(run.texts and run.outputs for run in runs)
        assert all(run.elapsed_s > 0.9 * 8 / 400 for run in runs), "the last one is due then"
        assert {frozenset(run.pss_mb) for run in runs} == {frozenset(_processes(arm))}
        assert all(run.memory_mb == pytest.approx(sum(run.pss_mb.values())) and run.memory_mb > 5 for run in runs)
    assert all(run.messages == 80 for run in result.runs["sync"]), "a step is a token"
    assert len({tuple(run.texts) for run in result.runs["sync"]}) == 3


def _processes(arm: str) -> tuple[str, ...]:
    return ("front", "engine", "detokenizer") if arm == "detok_chain" else ("front",)


def test_what_comes_over_http_is_the_same_text_and_as_many_tokens(echo: EngineConfig) -> None:
    result = compare(echo, CompareConfig(vary="http=off,on", topology="aio", detokenize="engine", **SMALL))
    assert result.void == [] and list(result.runs) == ["http=off", "http=on"]
    off, on = result.runs["http=off"], result.runs["http=on"]
    assert [run.texts for run in off] == [run.texts for run in on] and not on[0].outputs
    assert {run.output_tokens for run in (*off, *on)} == {80}
    assert {frozenset(run.cpu) for run in on} == {frozenset({"front", "load"})}
    assert all(run.load_busiest == 0 for run in off)
    assert [arm["http"] for arm in result.meta["arms"]] == [False, True]


def test_alone_each_run_has_an_arm_of_its_own(tmp_path: Path) -> None:
    result = compare(EngineConfig(model="echo"), CompareConfig(topologies="sync,inproc", alone=True, metric="memory_mb", **SMALL))
    assert result.void == [] and {len(runs) for runs in result.runs.values()} == {3}
    assert result.value("sync").value > 5 and result.ratio("inproc", "sync").value > 0.2


def test_memory_is_that_of_all_who_are_named() -> None:
    assert list(pss_mb({"front": os.getpid()})) == ["front"] and pss_mb({"front": os.getpid()})["front"] > 5


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"topologies": "sync,v1", "http": True, "detokenize": "front"}, "--http=True is not possible: sync has no front"),
        ({"topologies": "aio,v1", "http": True}, "a server speaks text; choose --detokenize"),
        ({"topologies": "detok_chain,v1", "detokenize": "process"}, "needs a layout with a process for it; v1 has none"),
        ({"topologies": "sync", "vary": "chunk=1,2"}, "no such setting"),
    ],
)
def test_what_an_arm_cannot_do_is_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make_arms(EngineConfig(), CompareConfig(**settings), Timing())


@pytest.mark.parametrize(("how", "does"), [("none", False), ("front", False), ("process", True)])
def test_a_process_for_detokenising_does_it_only_where_it_was_named(how: Any, does: bool) -> None:
    arms = make_arms(EngineConfig(), CompareConfig(topologies="detok_chain,detok_ring", detokenize=how), Timing())
    assert [arm.options["detokenize"] for arm in arms] == [does, does]
    assert [checked(arm) for arm in arms] == arms
