"""From settings to arms: one knob at a time, every value checked before anything starts."""

from __future__ import annotations

from typing import Any

import pytest

from mqlab.bench.affinity import parse_cores
from mqlab.bench.arms import Arm, make_arms
from mqlab.bench.compare_options import CompareConfig
from mqlab.config import EngineConfig, Timing
from mqlab.errors import ConfigError
from mqlab.topologies import TOPOLOGIES


def arms(model: str = "echo", **settings: Any) -> list[Arm]:
    return make_arms(EngineConfig(model=model), CompareConfig(**settings), Timing())


def test_without_a_word_the_layouts_are_compared() -> None:
    made = arms()
    assert [arm.topology for arm in made] == list(TOPOLOGIES)
    assert [arm.label for arm in made] == list(TOPOLOGIES)


@pytest.mark.parametrize(
    ("vary", "name", "values"),
    [
        ("preset=historical,best", "preset", ["historical", "best"]),
        ("codec=msgpack,pickle", "codec", ["msgpack", "pickle"]),
        ("output=delta,cumulative", "output", ["delta", "cumulative"]),
        ("concurrency=1,8,64", "concurrency", [1, 8, 64]),
        ("cores=none,0/0", "cores", [None, "0/0"]),
    ],
)
def test_one_setting_varies_and_the_rest_is_equal(vary: str, name: str, values: list[Any]) -> None:
    made = arms(vary=vary, topology="mq")
    assert [getattr(arm, name) for arm in made] == values
    assert {arm.topology for arm in made} == {"mq"}


def test_engine_settings_and_options_of_the_layout_vary_too() -> None:
    assert [arm.engine.max_num_seqs for arm in arms(vary="max-num-seqs=8,64")] == [8, 64]
    assert [arm.options for arm in arms(vary="chunk=0,128", topology="v1")] == [{"chunk": 0}, {"chunk": 128}]
    assert [arm.options for arm in arms(vary="intake=callback,poll", topology="mq")] == [{"intake": "callback"}, {"intake": "poll"}]


def test_detokenising_varies_where_there_is_a_tokenizer() -> None:
    assert [arm.detokenize for arm in arms("smollm2-135m", vary="detokenize=none,front,engine")] == ["none", "front", "engine"]
    with pytest.raises(ConfigError, match="needs a model with a tokenizer"):
        arms(vary="detokenize=none,front")


def test_two_knobs_need_to_be_asked_for() -> None:
    with pytest.raises(ConfigError, match=r"more than one setting varies \(topology, codec\).*--grid"):
        arms(topologies="mq,v1", vary="codec=msgpack,pickle")
    made = arms(topologies="mq,v1", vary="codec=msgpack,pickle", grid=True)
    assert [arm.label for arm in made] == ["mq msgpack", "mq pickle", "v1 msgpack", "v1 pickle"]
    assert len(arms(topologies="mq", vary="codec=msgpack,pickle")) == 2


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"topologies": "mq"}, "there is nothing to compare"),
        ({"topologies": "mq,mq"}, "each once"),
        ({"topologies": "mq,,v1"}, "separated by commas"),
        ({"vary": "codec"}, "has no '='"),
        ({"vary": "colour=red,blue"}, "no such setting; there are topology"),
        ({"vary": "concurrency=1,many"}, "'many' is not valid"),
        ({"vary": "concurrency=1,-1"}, "--concurrency=-1 must be at least 0"),
        ({"vary": "max_num_seqs=8,0"}, "--max-num-seqs=0 must be at least 1"),
        ({"vary": "intake=callback,dream", "topology": "mq"}, "'dream' is not valid"),
        ({"vary": "output=delta,sum"}, "'sum' is not valid"),
        ({"vary": "preset=best,worst"}, "--preset='worst' is unknown"),
        ({"topologies": "mq,bus"}, "--topology='bus' is unknown"),
        ({"rounds": 2}, "must be at least 3"),
        ({"vary": "enable_prefix_caching=yes,no"}, "'yes' is not valid: write true or false"),
        ({"vary": "prompt_lookup_max=4,1"}, r"--prompt-lookup-max=1 must be at least --prompt-lookup-min \(2\)"),
        ({"prefix_len": 64}, "--prefix-len=64 must be at least 0 and below --input-len"),
    ],
)
def test_what_makes_no_sense_is_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        arms(**settings)


def test_cores_are_read() -> None:
    assert parse_cores("0/0") == ({0}, {0})
    for text in ("0", "0/", "a/b", "/", "0/9999"):
        with pytest.raises(ConfigError, match="--cores="):
            parse_cores(text)
