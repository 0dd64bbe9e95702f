"""The seeds' measurements: declared, judged, written, read back and shown; run on an echo."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from mqlab import cli
from mqlab.bench.arm_run import DeviceUse, Run
from mqlab.bench.compare_options import CompareConfig
from mqlab.bench.comparison import Comparison
from mqlab.bench.seeds.experiment import Claim, Experiment, SeedArm, Wanted
from mqlab.bench.seeds.published import EXPERIMENTS
from mqlab.bench.seeds.result import SeedResult, SeedTable, load_experiment
from mqlab.bench.seeds.run import prepare
from mqlab.config import EngineConfig
from mqlab.errors import ConfigError
from mqlab.lab.opening import open_saved
from mqlab.record.stats import Interval
from mqlab.record.trace import Trace
from mqlab.topologies import TOPOLOGIES

FIGURES: dict[str, Any] = {"elapsed_s": 1.0, "output_tokens": 100, "ttft_ms": 1.0, "tpot_ms": 1.0, "cpu_us_per_token": 1.0, "foreign": 0.0}


def runs(*speeds: float, **more: Any) -> list[Run]:
    made = []
    for speed in speeds:
        rates = {"output_tokens_per_s": speed, "steady_tokens_per_s": speed}
        made.append(Run(**FIGURES, **rates, cpu={"front": 1.0}, outputs=["a"], **{"messages": 100, **more}))
    return made


def result(name: str, speeds: dict[str, Sequence[float]], *claims: Claim, one_each: bool = False, **more: Any) -> SeedResult:
    arms = tuple(SeedArm(label=label, topology="mq") for label in speeds)
    experiment = Experiment(name=name, question="why?", model="echo", arms=arms, claims=claims, one_each=one_each)
    config = CompareConfig(rounds=5, num_prompts=1, metric="steady_tokens_per_s")
    return SeedResult(experiment, Comparison(list(speeds), [runs(*own, **more) for own in speeds.values()], config, {"commit": "c"}))


SLOW, FAST = (100.0, 101.0, 99.0, 100.0, 100.0), (131.0, 129.0, 130.0, 130.0, 130.0)
GAIN = Claim(over="mq", under="aio", published="1.32", ratio=1.32, source="somebody", wanted=Wanted(text="≥ 1.15", low=1.15))


@pytest.mark.parametrize(
    ("wanted", "ratio", "measured", "verdict"),
    [
        (Wanted(text="", low=1.15), 1.32, (1.2, 1.1, 1.3), "reached"),
        (Wanted(text="", low=1.15), 1.32, (1.1, 0.9, 1.2), "not"),
        (Wanted(text="", low=1.15), 1.32, (0.9, 0.8, 0.99), "opposite"),
        (Wanted(text="", high=1.0, whole=True), 0.96, (0.97, 0.95, 0.99), "reached"),
        (Wanted(text="", high=1.0, whole=True), 0.96, (0.97, 0.95, 1.01), "not"),
        (Wanted(text="", high=1.0, whole=True), 0.96, (1.1, 1.05, 1.2), "opposite"),
        (Wanted(text="", low=0.98), 0.97, (1.1, 1.05, 1.2), "reached"),
        (Wanted(text="", low=0.25, high=0.55), 0.38, (0.4, 0.3, 0.7), "reached"),
        (Wanted(text="", low=100_000), None, (120_000, 90_000, 130_000), "reached"),
        (Wanted(text="shown"), None, (2.0, 1.0, 3.0), "shown"),
        (Wanted(text="", below="one: mq / aio"), 1.08, (1.1, 1.05, 1.2), "reached"),
        (Wanted(text="", below="one: mq / aio"), 1.08, (1.4, 1.3, 1.5), "not"),
        (Wanted(text="", below="other: mq / aio"), 1.08, (1.4, 1.3, 1.5), "open"),
    ],
)
def test_a_claim_is_judged_by_what_is_wanted(
    wanted: Wanted, ratio: float | None, measured: tuple[float, float, float], verdict: str
) -> None:
    claim = Claim(over="mq", under="aio", ratio=ratio, wanted=wanted)
    assert claim.verdict(Interval(*measured), {"one: mq / aio": 1.3}) == verdict


def test_the_table_has_a_row_for_each_claim_and_is_the_same_when_read_back(tmp_path: Path) -> None:
    below = Claim(over="mq", under="aio", published="1.08", ratio=1.08, wanted=Wanted(text="less", below="one: mq / aio"))
    alone = Claim(over="mq", wanted=Wanted(text="shown"))
    made = [result("one", {"aio": SLOW, "mq": FAST}, GAIN), result("two", {"aio": SLOW, "mq": SLOW}, below, alone)]
    table = SeedTable(made)
    assert [(row.experiment, row.claim.name, row.verdict) for row in table.rows] == [
        ("one", "mq / aio", "reached"),
        ("two", "mq / aio", "reached"),
        ("two", "mq", "shown"),
    ]
    for one in made:
        one.save(tmp_path)
    again = SeedTable.of_folder(tmp_path)
    assert str(again) == str(table) and "1.32" in str(table) and "≥ 1.15" in str(table)
    assert load_experiment(tmp_path / "one.json").experiment == made[0].experiment
    assert json.loads((tmp_path / "one.json").read_text())["comparison"]["meta"] == {"commit": "c"}
    opened = open_saved(str(tmp_path / "one.json"))
    assert isinstance(opened, SeedResult) and repr(opened) == repr(made[0]) and "reached" in repr(opened)
    html = again._repr_html_()
    assert html.count("<tr>") == 4 and "color" not in html, "in whatever colours surround it"
    labels = [label.get_text() for label in again.plot().figure.axes[0].get_yticklabels()]
    assert labels == ["mq / aio\ntwo", "mq / aio\none"], "ratios only"


def test_what_is_void_reaches_nothing_and_what_was_short_is_told() -> None:
    late = result("one", {"aio": SLOW, "mq": FAST}, GAIN, device=DeviceUse(busy_s=1.0, oversleep_s=0.2))
    assert [row.verdict for row in late.rows()] == ["void"]
    assert "late by 20.0% or more in every arm" in str(late)
    packed = result("one", {"aio": SLOW, "mq": FAST}, GAIN, one_each=True, messages=80)
    assert packed.void == ["tokens came several at once: aio, mq"] and packed.rows()[0].verdict == "void"
    assert not result("one", {"aio": SLOW, "mq": FAST}, GAIN, one_each=True).void
    quick = SeedResult(late.experiment, late.comparison, quick=True)
    assert "one: a quick run: not to be quoted" in quick.notes


def test_nothing_is_held_against_what_is_void() -> None:
    less = Claim(over="mq", under="aio", wanted=Wanted(text="less", below="one: mq / aio"))
    late = result("one", {"aio": SLOW, "mq": FAST}, GAIN, device=DeviceUse(busy_s=1.0, oversleep_s=0.2))
    assert [row.verdict for row in SeedTable([late, result("two", {"aio": SLOW, "mq": SLOW}, less)]).rows] == ["void", "open"]


def test_a_run_without_figures_is_void_and_still_shown() -> None:
    nothing = result("one", {"aio": SLOW, "mq": (0.0, *FAST[1:])}, GAIN)
    assert [row.verdict for row in nothing.rows()] == ["void"]
    assert "0 in a run of mq" in str(nothing) and nothing.plot()


def test_a_file_that_is_no_experiment_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text('{"experiment": {}, "quick": false}')
    for path in (tmp_path / "x.json", tmp_path / "none.json"):
        with pytest.raises(ConfigError, match="is no experiment of 'mqlab bench seeds'"):
            load_experiment(path)


@pytest.mark.parametrize("quick", [False, True])
@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_experiment_can_be_run_as_it_is_declared(name: str, quick: bool) -> None:
    experiment = EXPERIMENTS[name]
    arms, config = prepare(experiment, quick=quick)
    assert len({arm.label for arm in arms}) == len(arms) >= 2
    labels = {arm.label for arm in arms}
    assert {claim.over for claim in experiment.claims} <= labels and {claim.under for claim in experiment.claims} - {None} <= labels
    assert config.rounds >= 3 and not config.control
    known = {f"{one.name}: {claim.name}" for one in EXPERIMENTS.values() for claim in one.claims}
    assert {claim.wanted.below for claim in experiment.claims} - {None} <= known
    over_http = {claim.wanted.below.partition(":")[0].endswith("_http") for claim in experiment.claims if claim.wanted.below}
    assert over_http <= {name.endswith("_http")}, "held against what was measured in the same way"


def test_the_ceiling_is_that_of_every_layout() -> None:
    labels = [arm.label for arm in EXPERIMENTS["ceiling"].arms]
    assert [label for label in labels if label in TOPOLOGIES] == list(TOPOLOGIES)


def test_the_command_runs_what_is_named_and_writes_it(
    tmp_path: Path, model_folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MQLAB_CACHE", str(tmp_path / "cache"))
    line = f"bench seeds v1_over_sync --quick --model echo:{model_folder} --traces --output-dir {tmp_path / 'seeds'}"
    assert cli.main(line.split()) == 0
    shown = capsys.readouterr()
    made = load_experiment(tmp_path / "seeds" / "v1_over_sync.json")
    assert list(made.comparison.runs) == ["sync", "v1"] and made.quick and made.comparison.void == []
    assert made.comparison.differing() == {"v1": 0} and "v1 / sync" in shown.out
    assert [run.rpartition(" ")[2] for run in Trace.load(tmp_path / "seeds" / "v1_over_sync.mqtrace").runs] == ["sync", "v1"]
    assert made.comparison.meta["engine"]["model"] == EngineConfig(model=f"echo:{model_folder}").model
    assert cli.main(["bench", "seeds", "nothing"]) == 1
    assert "there is no experiment 'nothing'; there are mq_over_aio_single" in capsys.readouterr().err
