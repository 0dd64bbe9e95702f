"""``mqlab bench frontend``: what is counted is what was streamed, what is lost is told, and the floor stands beside it."""

from __future__ import annotations

import json
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
from serving import echo_server

from mqlab.arguments import build_parser, frontend_configs
from mqlab.bench.frontend.options import FrontendConfig, Load
from mqlab.bench.frontend.result import FLOOR, SERVER, FrontendResult, Memory, Round, Row, load_frontend
from mqlab.bench.frontend.run import frontend, main
from mqlab.errors import BenchError, ConfigError
from mqlab.lab.opening import open_saved

SMALL: dict[str, Any] = {"paced": "none", "tokens": 24, "rounds": 2}
FIGURES = {
    "server",
    "load",
    "front_us_per_token",
    "tokens_per_s",
    "tokens_per_chunk",
    "first_chunk_ms",
    "client_share",
    "lost",
    "memory",
    "rounds",
}
FOUR = Load(4, 0.0, 250)
ROUND = Round(
    tokens=1000,
    chunks=1000,
    elapsed_s=0.5,
    front_s=0.01,
    engine_s=0.002,
    client_s=0.003,
    first_ms={"p50": 2.0, "p99": 3.0},
    bytes_per_chunk=230.0,
    writes=1010,
    reads=900,
    peak=4,
    foreign=0.0,
    lost=0,
    errors=(),
)


def result_of(*rows: Row) -> FrontendResult:
    return FrontendResult(rows=rows, workload=FrontendConfig().as_record())


def row_of(server: str = SERVER, load: Load = FOUR, **changes: Any) -> Row:
    return Row(server, load, (replace(ROUND, **changes),) * 3)


def test_every_token_is_a_chunk_and_costs_something_beside_the_floor(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "frontend.json"
    assert main(FrontendConfig(streams="3", output_json=str(file), **SMALL)) == 0
    result = load_frontend(file)
    for server in (SERVER, FLOOR):
        row = result.row(server, "3 flat out")
        assert [(one.tokens, one.chunks, one.lost, one.peak) for one in row.rounds] == [(72, 72, 0, 3)] * 2
        assert 0.9 <= row.writes_per_chunk <= 3, "each chunk by itself, and what a request takes"
        assert min(row.us_per_token) > 0 and row.tokens_per_s.value > 0
        assert all(0 < one.first_ms["p50"] <= one.first_ms["p99"] and one.client_s > 0 for one in row.rounds)
    own, floor = (result.row(server, "3 flat out").rounds[0] for server in (SERVER, FLOOR))
    assert floor.bytes_per_chunk == pytest.approx(own.bytes_per_chunk, rel=0.1)
    record = json.loads(file.read_text())
    assert all(set(one) >= FIGURES for one in record["frontend"]) and record["meta"] and record["workload"]["topology"] == "v1"
    printed = capsys.readouterr().out
    assert "3 flat out: mqlab costs" in printed and "times its floor" in printed
    assert str(open_saved(str(file))) == str(result)


@pytest.mark.full
@pytest.mark.parametrize("topology", ["aio", "mq", "rpc_proxy"])
def test_any_layout_can_stand_behind_the_front(topology: str) -> None:
    result = frontend(FrontendConfig(streams="3", topology=topology, floor=False, **SMALL))
    assert [(one.tokens, one.lost) for one in result.rows[0].rounds] == [(72, 0)] * 2 and not result.void


@pytest.mark.full
def test_streams_are_paced_and_held_open_with_the_memory_of_each_told() -> None:
    result = frontend(FrontendConfig(streams="none", paced="4@10", held="40", tokens=12, rounds=1))
    paced, floor, held = result.rows
    assert all(one.rounds[0].elapsed_s >= 0.11 for one in (paced, floor)), "twelve steps of 10 ms"
    assert held.rounds[0].peak == 40 and held.lost == 0 and held.memory is not None and held.memory.total_mb > 10
    assert not result.void and "40 held open: 40 open at once; the front holds" in str(result)


@pytest.mark.full
def test_a_server_that_runs_already_is_measured_by_its_processes(model_folder: Path, tmp_path: Path) -> None:
    with echo_server(model_folder, tmp_path) as process:
        pids = (str(process.popen.pid),)
        result = frontend(FrontendConfig(url=process.url, pid=pids, streams="2", floor=False, tokens=24, rounds=2))
        assert [one.engine_s > 0 for one in result.rows[0].rounds] == [True, True]
        gone = subprocess.Popen(["true"])
        gone.wait()
        with pytest.raises(ConfigError, match=f"--pid={gone.pid} is no process of this machine"):
            frontend(FrontendConfig(url=process.url, pid=(str(gone.pid),), streams="2"))


@pytest.mark.full
def test_a_server_that_does_not_start_is_told_with_its_last_words() -> None:
    with pytest.raises(BenchError, match=r"(?s)ended with exit code 1 before it was ready.*no such thing"):
        frontend(FrontendConfig(model="no such thing", streams="1", paced="none"))


def test_a_peer_that_does_not_start_is_told_and_nothing_of_it_stays(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho no vllm here >&2\nexit 3\n")
    python.chmod(0o755)
    with pytest.raises(BenchError, match=r"(?s)exit code 3 .*no vllm here"):
        frontend(FrontendConfig(peer_python=str(python), streams="1", paced="none"))
    assert not psutil.Process().children()


def test_more_streams_than_files_are_refused_before_anything_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mqlab.bench.frontend.run.connections_of_a_process", lambda: 100)
    with pytest.raises(ConfigError, match=r"201 streams are too many.*100 connections.*--api-server-count"):
        frontend(FrontendConfig(streams="1", paced="none", held="201", api_server_count=2))


def test_what_makes_the_figures_void_is_told() -> None:
    held = Load(5, 0.1, 32, held=True)
    result = result_of(row_of(lost=1, errors=("cut",)), row_of(load=Load(8, 0.0, 250), chunks=800), row_of(load=held, peak=4))
    assert result.void == [
        "4 flat out, mqlab: 3 streams were lost: cut",
        "8 flat out: 1.250 tokens in a chunk, not one by one",
        "5 held open: at most 4 were open at once",
    ]
    assert all(f"warning: {why}" in str(result) for why in result.void)


def test_a_busy_client_and_a_busy_machine_are_told() -> None:
    assert not result_of(row_of()).warnings
    assert "the clients used 30%, 90% of the CPU time" in str(result_of(row_of(), row_of(client_s=0.009)))
    assert result_of(row_of(client_s=0.48)).warnings == ["4 flat out, mqlab: the clients were the limit"]
    assert "other programs used 30%" in result_of(row_of(foreign=0.3)).warnings[0]


def test_ratios_are_of_the_floor_and_of_the_peer() -> None:
    peer = row_of("vLLM", Load(4, 0.0, 50), front_s=0.05)
    result = result_of(row_of(), row_of(FLOOR, front_s=0.004), peer)
    assert {server: ratio.value for (_, server), ratio in result.ratios.items()} == {FLOOR: pytest.approx(2.5), "vLLM": pytest.approx(5)}
    assert "4 flat out: mqlab costs 2.5" in str(result) and "vLLM costs 5" in str(result)


def test_a_result_can_be_looked_at(tmp_path: Path) -> None:
    row = replace(row_of(load=Load(5, 0.1, 32, held=True), peak=5), memory=Memory(rss=2000.0, pss=1500.0, total_mb=80.0))
    result = result_of(row_of(), row)
    assert repr(result) == "<frontend: µs per token: 4 flat out 10, 5 held open 10>"
    assert "<td>4 flat out</td><td>mqlab</td>" in result._repr_html_()
    assert "5 open at once; the front holds 1.5 kB PSS, 2.0 kB RSS for each connection, 80 MB in all" in str(result)
    assert result.to_pandas()["front_us_per_token"].tolist() == pytest.approx([10, 10])
    (tmp_path / "one.json").write_text(json.dumps(result.as_record()))
    assert load_frontend(tmp_path / "one.json").rows == result.rows
    (tmp_path / "other.json").write_text('{"frontend": 3}')
    with pytest.raises(ConfigError, match=r"other.json is no result of 'mqlab bench frontend'"):
        load_frontend(tmp_path / "other.json")


def test_the_command_line_gives_the_settings() -> None:
    line = "bench frontend --streams 8 --topology mq --no-floor --url http://localhost:1 --pid 7 8"
    (found,) = frontend_configs(build_parser().parse(line.split()))
    assert (found.streams, found.topology, found.floor, tuple(found.pid)) == ("8", "mq", False, ("7", "8"))


def test_what_is_measured_follows_from_the_settings() -> None:
    loads = FrontendConfig(streams="64,256", paced="64@5", held="20000").loads
    assert [str(load) for load in loads] == ["64 flat out", "256 flat out", "64 at 5 ms", "20,000 held open"]
    assert loads[-1].step_s * loads[-1].tokens >= 20, "a front that takes a thousand requests a second has them all before the first ends"
    assert [str(load) for load in FrontendConfig(url="http://localhost:1", pid=("1",), streams="8").loads] == ["8 flat out"]


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"streams": "64,x"}, "--streams='64,x' must be whole numbers above 0"),
        ({"streams": "0"}, "--streams='0' must be whole numbers above 0"),
        ({"paced": "64"}, "--paced='64' must be as 64@5,256@20"),
        ({"paced": "4@0"}, "--paced='4@0' must be as"),
        ({"model": "sim:llama-3.1-8b@h100"}, "--paced='64@5,256@20' needs an echo core"),
        ({"held": "many"}, "--held='many' must be whole numbers"),
        ({"streams": "none", "paced": "none"}, "all none"),
        ({"rounds": 0}, "--rounds=0 must be at least 1"),
        ({"url": "http://localhost:1"}, "needs --pid"),
        ({"pid": ("1",)}, "needs --pid, and --pid needs it"),
        ({"url": "http://localhost:1", "pid": ("x",)}, "must be process ids"),
    ],
)
def test_settings_that_make_no_sense_are_refused(wrong: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        FrontendConfig(**wrong)
