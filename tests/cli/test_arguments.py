"""The argument tree: generated from the configs, shared by the command line and the magics."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqlab.arguments import (
    build_parser,
    codecs_configs,
    compare_configs,
    device_configs,
    latency_configs,
    load_configs,
    sampler_configs,
    scheduler_configs,
    serve_configs,
    throughput_configs,
)
from mqlab.bench.codecs_options import CodecsConfig
from mqlab.bench.compare_options import CompareConfig
from mqlab.bench.device.options import DeviceConfig
from mqlab.bench.load_options import LoadConfig
from mqlab.bench.options import DatasetConfig, LatencyConfig, ThroughputConfig
from mqlab.bench.sampler_options import SamplerConfig
from mqlab.bench.scheduler_options import SchedulerConfig
from mqlab.config import EngineConfig, ServerConfig, Timing, option
from mqlab.errors import ConfigError
from mqlab.flags import HelpShown, Parser, add_config, read_config


def parse(line: str) -> Any:
    return build_parser().parse(line.split())


@dataclass(frozen=True)
class Sample:
    """A sample. Not shown."""

    count: int | None = option(None, "100% of it")
    ratio: float = option(0.5, "a ratio")
    loud: bool = option(False, "noise")
    quiet: bool = option(True, "silence")
    kind: str = option("a", "which", choices=("a", "b"))


def sample(*argv: str) -> Sample:
    parser = Parser(prog="x")
    add_config(parser, Sample)
    return read_config(parser.parse(argv), Sample)


def test_defaults_are_those_of_the_configs() -> None:
    assert serve_configs(parse("serve smollm2-135m")) == (EngineConfig(), ServerConfig(), Timing())
    assert throughput_configs(parse("bench throughput")) == (EngineConfig(), ThroughputConfig(), DatasetConfig(), Timing())
    assert latency_configs(parse("bench latency")) == (EngineConfig(), LatencyConfig(), Timing())
    assert scheduler_configs(parse("bench scheduler")) == (EngineConfig(), SchedulerConfig())
    assert sampler_configs(parse("bench sampler")) == (SamplerConfig(),)
    assert device_configs(parse("bench device")) == (DeviceConfig(),)
    assert codecs_configs(parse("bench codecs")) == (CodecsConfig(),)
    assert load_configs(parse("bench serve")) == (LoadConfig(), DatasetConfig())
    assert compare_configs(parse("compare smollm2-135m")) == (EngineConfig(), CompareConfig(), Timing())


@pytest.mark.parametrize("config", [EngineConfig, ServerConfig, Timing])
def test_every_setting_has_a_flag_and_help_tells_its_default(config: type, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(HelpShown):
        parse("serve --help=all")
    shown = " ".join(capsys.readouterr().out.split())
    for one in fields(config):
        flag = "MODEL" if one.name == "model" else "--" + one.name.replace("_", "-")
        assert flag in shown
        assert one.metadata["help"].partition("-")[0].strip() in shown
        if one.name != "model" and one.default not in (None, False, ()):
            assert f"(default: {one.default})" in shown


def test_values_are_read_by_their_types() -> None:
    assert sample("--count", "12", "--ratio", "2", "--loud", "--no-quiet", "--kind", "b") == Sample(12, 2.0, True, False, "b")
    assert sample() == Sample()
    engine, server, _ = serve_configs(parse("serve org/m --max-model-len 1.5k --num-kv-blocks 4K --topology mq --dtype float32"))
    assert (engine.model, engine.max_model_len, engine.num_kv_blocks, engine.dtype) == ("org/m", 1500, 4096, "float32")
    assert server.topology == "mq"


@given(st.integers(-(2**70), 2**70))
def test_whole_numbers_are_exact(value: int) -> None:
    assert sample(f"--count={value}").count == value


@pytest.mark.parametrize(("text", "value"), [("1k", 1000), ("1K", 1024), ("2m", 2_000_000), ("2M", 2 << 20), ("3G", 3 << 30)])
def test_numbers_take_units(text: str, value: int) -> None:
    assert sample("--count", text).count == value
    assert sample("--ratio", text).ratio == value


@pytest.mark.parametrize("text", ["abc", "1.5", "", "k", "1kk", "inf", "nan", "1e400"])
def test_what_is_no_whole_number_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="--count"):
        sample("--count", text)


def test_disable_log_stats_is_an_interval_of_zero() -> None:
    assert serve_configs(parse("serve m --disable-log-stats"))[0].log_stats_interval == 0


@pytest.mark.parametrize(
    ("line", "words", "usage"),
    [
        ("", "COMMAND", "mqlab COMMAND"),
        ("nope", "'nope'", "mqlab COMMAND"),
        ("serve", "MODEL", "mqlab serve MODEL [options]"),
        ("serve m --nope", "--nope", "mqlab serve MODEL [options]"),
        ("serve m --port abc", "--port: 'abc' is not a number", "mqlab serve"),
        ("serve m --cuda-graph-sizes 1,2", "--cuda-graph-sizes: '1,2' must be given with spaces, like 1 2 4", "mqlab serve"),
        ("serve m --enforce-eager=yes", "--no-enforce-eager: takes no value, and got 'yes'", "mqlab serve"),
        ("serve m --por 1", "--por", "mqlab serve"),
        ("serve m --topology ring", "'inproc'", "mqlab serve"),
        ("serve m extra", "extra", "mqlab serve"),
        ("bench", "BENCHMARK", "mqlab bench BENCHMARK"),
        ("bench throughput --nope", "--nope", "mqlab bench throughput"),
        ("fetch", "NAME", "mqlab fetch NAME"),
    ],
)
def test_wrong_arguments_name_the_culprit_with_a_short_usage(line: str, words: str, usage: str) -> None:
    with pytest.raises(ConfigError) as refused:
        parse(line)
    first, *rest = str(refused.value).splitlines()
    assert words in first
    assert rest[0].startswith(f"usage: {usage}")
    assert len(rest) == 2


@pytest.mark.parametrize(
    "line", ["serve m --port 70000", "serve m --block-size 0", "serve m --stop-grace 0", "bench throughput --input-len 0"]
)
def test_values_out_of_range_name_their_flag(line: str) -> None:
    namespace = parse(line)
    read = serve_configs if namespace.command == "serve" else throughput_configs
    with pytest.raises(ConfigError, match=line.split()[2]):
        read(namespace)


def test_async_engine_is_the_aio_topology() -> None:
    assert throughput_configs(parse("bench throughput --async-engine"))[1].layout == "aio"
    with pytest.raises(ConfigError, match="--async-engine"):
        throughput_configs(parse("bench throughput --async-engine --topology mq"))


def test_the_tree_can_carry_another_name(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(HelpShown):
        build_parser("%mqlab").parse(["serve", "-h"])
    assert capsys.readouterr().out.startswith("usage: %mqlab serve MODEL [options]")
