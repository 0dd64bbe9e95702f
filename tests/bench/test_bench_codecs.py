"""The codecs' benchmark: what is timed, that its bytes are those of the messages, and what is told of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from mqlab.bench.codecs import codecs, main
from mqlab.bench.codecs_options import CodecsConfig
from mqlab.bench.codecs_result import CodecsResult, Row, load_codecs
from mqlab.errors import ConfigError
from mqlab.lab.opening import open_saved
from mqlab.types import Delta, Step
from mqlab.wire.codecs import make_codec

SMALL: dict[str, Any] = {"batch": "1,3", "tokens": 20, "steps": 4, "num_iters_warmup": 0, "num_iters": 3}
KINDS = [(codec, output) for codec in ("msgpack", "pickle") for output in ("delta", "cumulative")]


def test_every_codec_is_timed_with_both_outputs_and_its_bytes_are_those_of_the_message() -> None:
    result = codecs(CodecsConfig(**SMALL))
    assert [(row.codec, row.output, row.batch) for row in result.rows] == [(*kind, batch) for batch in (1, 3) for kind in KINDS]
    assert all(len(row.encode_us) == len(row.decode_us) == 3 and min(row.both_us) > 0 for row in result.rows)
    for row in result.rows:
        tokens = [1019] if row.output == "delta" else list(range(1000, 1020))
        message = make_codec(row.codec).encode(Step([Delta(f"request-{i:04d}", [*tokens]) for i in range(row.batch)]))
        assert row.bytes == len(message)


def test_it_prints_a_table_and_writes_a_record_that_can_be_read_back(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "codecs.json"
    assert main(CodecsConfig(output_json=str(file), **SMALL)) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "of 20 so far; medians of 3 rounds" in lines[0]
    assert [tuple(line.split()[:3]) for line in lines[2:10]] == [(*kind, str(batch)) for batch in (1, 3) for kind in KINDS]
    again = load_codecs(file)
    assert json.loads(json.dumps(again.as_record()["codecs"])) == json.loads(file.read_text())["codecs"]
    assert again.workload == SMALL
    assert str(open_saved(str(file))) == str(again)


def test_what_is_no_result_is_refused(tmp_path: Path) -> None:
    (tmp_path / "other.json").write_text('{"codecs": 3}')
    for name in ("missing.json", "other.json"):
        with pytest.raises(ConfigError, match=f"{name} is no result of 'mqlab bench codecs'"):
            load_codecs(tmp_path / name)


def test_a_result_can_be_looked_at() -> None:
    rows = (Row("msgpack", "delta", 8, 100, (1.0, 1.0, 1.0), (2.0, 2.0, 2.0)), Row("pickle", "delta", 8, 200, (4.0,) * 3, (5.0,) * 3))
    result = CodecsResult(rows=rows, workload=SMALL)
    assert repr(result) == "<codecs: up to 9 µs a step (pickle, delta, 8 requests)>"
    assert result.ratio(("pickle", "delta"), ("msgpack", "delta"), 8).value == pytest.approx(3)
    assert result.to_pandas()["both_us"].tolist() == [3, 9]
    assert "<td>200</td><td>4 [4, 4]</td><td>5 [5, 5]</td>" in result._repr_html_()
    assert result.plot()._repr_png_().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"batch": "1,x"}, "--batch='1,x' must be whole numbers with commas"),
        ({"batch": "²"}, "--batch='²' must be whole numbers with commas"),
        ({"batch": "0"}, "--batch='0' must hold numbers of at least 1"),
        ({"tokens": 3, "steps": 4}, "--tokens=3 must be more than half of --steps"),
        ({"steps": 0}, "--steps=0 must be at least 1"),
        ({"num_iters": 0}, "--num-iters=0 must be at least 1"),
        ({"num_iters_warmup": -1}, "--num-iters-warmup=-1 must be at least 0"),
    ],
)
def test_settings_that_make_no_sense_are_refused(wrong: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        CodecsConfig(**{**SMALL, **wrong})
