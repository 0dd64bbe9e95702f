"""Virtual time: hand-computed runs to the nanosecond, the same numbers every time, and what the command prints."""

from __future__ import annotations

import json
import time
from pathlib import Path

import numpy as np
import pytest
from simulated import write_device

from mqlab.bench.capacity import capacity
from mqlab.bench.capacity_options import CapacityConfig
from mqlab.bench.options import DatasetConfig
from mqlab.bench.virtual import simulate
from mqlab.cli import main
from mqlab.config import EngineConfig
from mqlab.errors import ConfigError
from mqlab.types import Request, SamplingParams

TEN_MS = 0.010


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A model whose steps take 10 ms, whatever is in them."""
    return f"sim:pythia-70m@{write_device(tmp_path_factory.mktemp('device'), 1e3 * TEN_MS)}"


def ask(id: str, prompt: int, tokens: int) -> Request:
    return Request(id, list(range(3, 3 + prompt)), SamplingParams(temperature=0.0, max_tokens=tokens, ignore_eos=True))


def test_two_requests_by_hand(model: str) -> None:
    engine = EngineConfig(model=model, max_num_seqs=2, max_num_batched_tokens=4)
    # a: prompt in one step, 10 ms. b comes at 25 ms, within a's third step, and its 6 tokens need two steps beside a's one token.
    run = simulate(engine, [ask("a", 3, 6), ask("b", 6, 2)], [0.0, 0.025])
    a, b = run.requests
    assert a.event_s.tolist() == pytest.approx([0.01, 0.02, 0.03, 0.04, 0.05, 0.06], abs=1e-12)
    assert b.event_s.tolist() == pytest.approx([0.05, 0.06], abs=1e-12)
    assert (a.ttft, a.tpot, a.e2el) == pytest.approx((0.01, 0.01, 0.06))
    assert (b.ttft, b.tpot, b.e2el) == pytest.approx((0.025, 0.01, 0.035))
    assert (run.stats.steps, run.stats.device_us, run.stats.oversleep_us) == (6, 60_000, 0)
    assert (run.duration, run.output_throughput, run.device_share) == pytest.approx((0.06, 8 / 0.06, 1.0))
    assert run.as_record()["max_concurrent_requests"] == 2


def test_an_idle_engine_waits_for_whoever_comes_next(model: str) -> None:
    run = simulate(EngineConfig(model=model), [ask("late", 3, 1), ask("early", 3, 1)], [5.0, 1.0])
    assert [one.end_s for one in run.requests] == pytest.approx([5.01, 1.01])
    assert run.device_share == pytest.approx(0.02 / 5.01)


def test_several_rounds_and_two_steps_in_flight(model: str) -> None:
    requests = [ask("a", 3, 9)]
    together = simulate(EngineConfig(model=model, num_scheduler_steps=4), requests, [0.0])
    assert together.stats.steps == 3 and together.duration == pytest.approx(0.09), "a prompt, and twice four rounds of 10 ms"
    ahead = simulate(EngineConfig(model=model, async_scheduling=True), requests, [0.0])
    assert ahead.duration == pytest.approx(0.09), "nothing is won where the host costs nothing"


def test_a_request_that_cannot_run_has_an_error(model: str) -> None:
    run = simulate(EngineConfig(model=model, max_model_len=16), [ask("long", 40, 1), ask("good", 3, 1)], [0.0, 0.0])
    assert "16" in run.requests[0].error and run.requests[1].ok and len(run.good) == 1


def test_capacity_is_the_same_every_time_and_faster_than_real(model: str) -> None:
    # 8 at once, 20 tokens of 10 ms each: 8 / 0.2 s = 40 requests/s.
    engine = EngineConfig(model=model, max_num_seqs=8)
    dataset, config = DatasetConfig(input_len=8, output_len=20), CapacityConfig(rates="inf,10,80,20", num_prompts=60)
    begin = time.process_time()
    result = capacity(engine, config, dataset)
    spent, simulated = time.process_time() - begin, sum(run.duration for run in result.runs.values())
    again = capacity(engine, config, dataset)
    assert result.rows == again.rows
    assert (list(result.runs), result.knee) == ([10, 20, 80, np.inf], 20)
    assert result.runs[80].request_throughput == pytest.approx(40, rel=0.1)
    assert result.runs[10].spreads["ttft"].median == pytest.approx(15, abs=5), "the rest of a step, and one"
    assert spent < simulated
    assert "keeps up with 20 requests/s" in str(result) and "keeps up with 20" in result._repr_html_()
    assert len(result.to_pandas()) == 4


def test_requests_that_are_too_few_to_fill_the_seats_tell_nothing(model: str) -> None:
    # 100 seats for 40 requests: none waits for one. Each takes 0.2 s, all have come after 0.4 s.
    result = capacity(
        EngineConfig(model=model, max_num_seqs=100),
        CapacityConfig(rates="5,100", num_prompts=40),
        DatasetConfig(input_len=8, output_len=20),
    )
    assert [result.keeps_up(rate) for rate in result.runs] == [True, None] and result.knee == 5
    assert "keeps up with 5 requests/s; too few requests to tell at 100: raise --num-prompts" in str(result)
    assert [row["keeps_up"] for row in result.rows] == [True, None]


def test_only_simulated_models_have_virtual_time() -> None:
    with pytest.raises(ConfigError, match="'smollm2-135m' has no virtual time; pass a simulated one"):
        capacity(EngineConfig(), CapacityConfig(), DatasetConfig())


@pytest.mark.parametrize("rates", ["", "1,x", "0", "-1,2"])
def test_rates_are_checked(rates: str) -> None:
    with pytest.raises(ConfigError, match="--rates"):
        CapacityConfig(rates=rates)


def test_the_command_prints_a_table_and_writes_json(model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "capacity.json"
    arguments = ["--rates", "5,inf", "--num-prompts", "10", "--input-len", "8", "--output-len", "4", "--output-json", str(path)]
    assert main(["bench", "capacity", "--model", model, *arguments]) == 0
    assert "keeps up with 5 requests/s" in capsys.readouterr().out
    record = json.loads(path.read_text())
    assert record["knee"] == 5 and [row["request_rate"] for row in record["rows"]] == [5, "inf"]
    assert record["engine"]["model"] == model and record["dataset"]["seed"] == 0
