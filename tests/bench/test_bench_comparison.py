"""What a comparison says is a function of its runs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from mqlab.bench.arm_run import Run
from mqlab.bench.compare_options import CompareConfig
from mqlab.bench.comparison import Comparison
from mqlab.bench.reuse import Reuse


def runs(*speeds: float, outputs: Sequence[str] = ("a", "b"), foreign: float = 0.0) -> list[Run]:
    return [
        Run(
            elapsed_s=1.0,
            output_tokens=100,
            output_tokens_per_s=speed,
            steady_tokens_per_s=speed,
            ttft_ms=1000 / speed,
            tpot_ms=100 / speed,
            cpu_us_per_token=3.0,
            cpu={"front": 0.5, "engine": 0.9},
            foreign=foreign,
            outputs=list(outputs),
        )
        for speed in speeds
    ]


def comparison(arms: dict[str, list[Run]], **settings: Any) -> Comparison:
    return Comparison(list(arms), list(arms.values()), CompareConfig(**{"num_prompts": 2, **settings}), {"host": "here"})


SLOW = (100.0, 102.0, 98.0, 101.0, 99.0)
FAST = (131.0, 129.0, 128.0, 132.0, 130.0)


def test_the_verdict_names_the_fastest_and_its_interval() -> None:
    verdict = comparison({"aio": runs(*SLOW), "mq": runs(*FAST)}).verdict
    assert verdict.startswith("mq 1.30× [1.2")
    assert verdict.endswith("aio (new tokens/s, 5 rounds)")


def test_noise_is_called_noise() -> None:
    verdict = comparison({"aio": runs(*SLOW), "mq": runs(*reversed(SLOW))}).verdict
    assert verdict.startswith("no difference from aio that this run can tell: mq 1.00×")


def test_less_is_better_for_latencies() -> None:
    arms = {"aio": runs(*SLOW), "mq": runs(*FAST), "v1": runs(*(speed * 2 for speed in FAST))}
    assert comparison(arms, metric="ttft_ms").verdict.startswith("v1 0.38×")


def test_a_baseline_that_wins_is_named() -> None:
    arms = {"mq": runs(*FAST), "aio": runs(*SLOW), "v1": runs(*(0.9 * speed for speed in SLOW))}
    verdict = comparison(arms).verdict
    assert verdict.startswith("nothing beats mq: aio 0.77×")
    assert ", v1 0.69×" in verdict
    assert comparison(arms, metric="ttft_ms").verdict.startswith("nothing beats mq: aio 1.30×")


def test_rounds_are_paired() -> None:
    drifting = (100.0, 120.0, 140.0, 160.0, 180.0)
    (_, row) = comparison({"a": runs(*drifting), "b": runs(*(1.1 * speed for speed in drifting))}).rows()
    assert row.ratio.value == pytest.approx(1.1)
    assert row.ratio.high - row.ratio.low < 1e-9


def test_outputs_that_differ_void_it() -> None:
    result = comparison({"a": runs(*SLOW), "b": runs(*FAST, outputs=("a", "c"))})
    assert result.differing() == {"b": 5}
    assert result.void == ["outputs differ from the baseline's: b in 5 of 10 requests"]
    assert result.verdict.startswith("void: ")
    assert "same tokens" not in str(result)
    assert "all arms gave the same tokens" in str(comparison({"a": runs(*SLOW), "b": runs(*FAST)}))


def test_drift_and_foreign_load_are_told() -> None:
    rising = (100.0, 110.0, 120.0, 130.0, 140.0, 150.0)
    drifted = comparison({"a": runs(*rising), "b": runs(*rising)}, rounds=6)
    assert any("the baseline drifted by +2" in warning for warning in drifted.warnings)
    assert drifted.verdict.startswith("doubtful: no difference from a")
    disturbed = comparison({"a": runs(*SLOW, foreign=0.2), "b": runs(*FAST, foreign=0.2)})
    assert [warning.partition(":")[0] for warning in disturbed.warnings] == ["other programs used 20% of this machine"]
    assert comparison({"a": runs(*SLOW), "b": runs(*FAST)}).warnings == []


def test_memory_that_arms_share_is_told() -> None:
    held = [msgspec.structs.replace(run, memory_mb=50.0) for run in runs(*SLOW)]
    (warning,) = comparison({"a": held, "b": held}, metric="memory_mb").warnings
    assert warning.endswith("add --alone for what an arm holds by itself")
    assert comparison({"a": held, "b": held}, metric="memory_mb", alone=True).warnings == []


def test_few_rounds_promise_less() -> None:
    few = comparison({"a": runs(*SLOW[:3]), "b": runs(*FAST[:3])}, rounds=3)
    assert few.warnings == ["intervals of 3 rounds hold the truth in 75% of cases at most, not 95%: raise --rounds"]
    assert comparison({"a": runs(*SLOW[:3]), "b": runs(*FAST[:3])}, rounds=3, confidence=0.75).warnings == []


def test_runs_too_short_for_the_metric_void_it() -> None:
    short = [msgspec.structs.replace(run, cpu_us_per_token=0.0) for run in runs(*FAST)]
    result = comparison({"a": runs(*SLOW), "b": short}, metric="cpu_us_per_token")
    assert result.void == [
        "CPU of all processes per new token, µs: 0 in a run of b, which is too short: raise --num-prompts or --output-len"
    ]
    assert "void: CPU" in str(result) and "–" in result._repr_html_() and result.plot()
    assert json.loads(json.dumps(result.as_record(), allow_nan=False))["rows"][1]["ratio"] is None
    assert not comparison({"a": runs(*SLOW), "b": short}).void, "another metric has its figures"


def test_the_control_must_give_the_same_tokens_too() -> None:
    result = comparison({"a": runs(*SLOW), "b": runs(*FAST), "a without probes": runs(*SLOW, outputs=("a", "c"))})
    assert result.differing() == {"b": 0, "a without probes": 5} and result.void


def test_what_probes_cost_comes_from_the_runs_without_them() -> None:
    without = runs(*(speed / 0.98 for speed in SLOW))
    result = comparison({"a": runs(*SLOW), "b": runs(*FAST), "a without probes": without})
    cost = result.probe_cost()
    assert cost is not None
    assert (cost.value, cost.low, cost.high) == pytest.approx((0.02, 0.02, 0.02))
    assert "probes cost 2.0% [2.0%, 2.0%] of a's tokens/s" in str(result)
    assert list(result.runs) == ["a", "b"]
    assert comparison({"a": runs(*SLOW), "b": runs(*FAST)}).probe_cost() is None


def test_everything_is_in_the_frame_and_in_the_record() -> None:
    result = comparison({"a": runs(*SLOW), "b": runs(*FAST), "a without probes": runs(*SLOW)})
    frame = result.to_pandas()
    assert len(frame) == 15
    assert set(frame["arm"]) == {"a", "b", "a without probes"}
    assert {"round", "output_tokens_per_s", "cpu_front", "cpu_engine", "foreign", "found", "busy_s"} <= set(frame.columns)
    assert not frame.map(lambda cell: isinstance(cell, dict)).any(axis=None), "a figure a column"
    record = json.loads(json.dumps(result.as_record()))
    assert record["verdict"] == result.verdict
    assert record["rows"][1]["ratio"]["value"] == pytest.approx(1.3, abs=0.01)
    assert record["meta"] == {"host": "here"}
    assert len(record["runs"]["b"]) == 5


def test_a_record_says_the_same_again() -> None:
    for outputs in (("a", "b"), ("a", "c")):
        result = comparison({"a": runs(*SLOW), "b": runs(*FAST, outputs=outputs), "a without probes": runs(*SLOW)})
        again = Comparison.of_record(json.loads(json.dumps(result.as_record())))
        assert str(again) == str(result)
        assert again.as_record() == result.as_record()


def test_it_is_shown_as_text_table_and_picture() -> None:
    result = comparison({"a<b>": runs(*SLOW), "b": runs(*FAST)})
    html = result._repr_html_()
    assert "a&lt;b&gt;" in html
    assert "<table>" in html
    axes = result.plot().figure.axes[0]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["b", "a<b>"]
    assert repr(result) == f"<Comparison: {result.verdict}>"


def test_what_the_arms_had_in_their_caches_is_told_and_warned_of_unless_prompts_share_a_prefix() -> None:
    cached = [msgspec.structs.replace(run, reuse=Reuse(looked_up=100, found=75, guessed=40, kept=30)) for run in runs(*FAST)]
    for prefix_len in (0, 16):
        result = comparison({"on": cached, "off": runs(*SLOW)}, prefix_len=prefix_len)
        assert "on: 75.0% of the prompt tokens came from the prefix cache; 75.0% of 200 guessed tokens were kept\n" in f"{result}\n"
        assert "off: " not in str(result)
        assert any("75% of the prompt tokens were in an engine's prefix cache" in text for text in result.warnings) == (prefix_len == 0)
        again = Comparison.of_record(json.loads(json.dumps(result.as_record())))
        assert again.reuse() == result.reuse() and result.reuse()["on"].found == 375
        assert result.to_pandas()["found"].tolist() == [75] * 5 + [0] * 5
