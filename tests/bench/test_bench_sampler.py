"""The sampler's benchmark: what it draws for, and what is told of it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mqlab.bench.sampler import main, sampler
from mqlab.bench.sampler_mix import KINDS, batch_of
from mqlab.bench.sampler_options import SamplerConfig
from mqlab.bench.sampler_result import SamplerResult
from mqlab.errors import ConfigError

SMALL = SamplerConfig(batch_size=12, vocab_size=200, history_len=8, num_iters=2, num_iters_warmup=1, num_threads=1)


def test_a_mixed_batch_has_every_kind() -> None:
    chunks = batch_of([*KINDS], SMALL)
    params = [chunk.params for chunk in chunks]
    assert len(chunks) == 12
    assert sum(one.greedy for one in params) == 2
    for field in ("top_p", "top_k", "min_p", "presence_penalty", "logit_bias", "logprobs"):
        assert any(getattr(one, field) != getattr(params[1], field) for one in params), field
    assert [chunk.mask is not None for chunk in chunks].count(True) == 1
    assert [len(chunk.history) for chunk in chunks if chunk.params.penalised] == [8]


def test_it_prints_a_table_and_writes_a_record(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "sampler.json"
    assert main(SamplerConfig(**{**SMALL.as_record(), "output_json": str(file)})) == 0
    shown = capsys.readouterr().out
    record = json.loads(file.read_text())
    assert "sampler, 12 rows of 200 logits, 1 threads, seed 0; medians of 2 rounds" in shown
    assert list(record["median_us"]) == [*KINDS, "mixed"]
    assert all(name in shown for name in record["median_us"])
    assert f"mixed over greedy: {record['mixed_over_greedy']:.2f}, the sampler alone" in shown
    assert record["workload"]["history_len"] == 8
    assert record["step_us"] is None


def test_a_step_of_a_model_is_timed_beside_it(model_folder: Path) -> None:
    config = SamplerConfig(**{**SMALL.as_record(), "model": str(model_folder), "batch_size": 2})
    result = sampler(config)
    assert result.step_us is not None and result.step_us > 0
    assert "of a whole decode step, as a step of" in str(result)


def test_a_result_can_be_looked_at() -> None:
    result = SamplerResult(median_us={"greedy": 100.0, "mixed": 150.0}, step_us=900.0, workload={**SMALL.as_record(), "model": "m"})
    assert result.ratio == 1.5
    assert result.step_ratio == pytest.approx(1.05)
    assert repr(result) == "<sampler, 12 rows of 200 logits: mixed over greedy 1.50>"
    assert result.to_pandas().loc["mixed"].tolist() == [150, 12.5, 1.5]
    assert "150 µs, 1.50 × greedy" in result._repr_html_()
    assert result.plot()._repr_png_().startswith(b"\x89PNG")


@pytest.mark.parametrize("name", ["batch_size", "vocab_size", "history_len", "num_iters"])
def test_sizes_of_nothing_are_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=f"--{name.replace('_', '-')}=0 must be at least 1"):
        SamplerConfig(**{name: 0})
