"""Specs and wirings: recipes that cross into a child."""

from __future__ import annotations

import pickle

import pytest

from mqlab.config import EngineConfig
from mqlab.engine.echo import EchoCore
from mqlab.errors import ConfigError
from mqlab.probes.faults import FaultyCore
from mqlab.wire.spec import Spec
from mqlab.wire.wiring import Wiring


def test_a_spec_builds_what_it_names() -> None:
    assert Spec("builtins:dict", {"a": 1}).build([("b", 2)]) == {"a": 1, "b": 2}
    assert Spec("builtins:dict.fromkeys").build("ab") == {"a": None, "b": None}


@pytest.mark.parametrize(
    ("target", "reason"),
    [
        ("no_module_of_that_name:f", "no_module_of_that_name"),
        ("mqlab.types:Nothing", "Nothing"),
        ("mqlab.types", "package.module:factory"),
        ("__main__:f", "importable in another process"),
        ("", "package.module:factory"),
        (":f", "cannot be resolved|package.module:factory"),
    ],
)
def test_a_target_that_cannot_be_is_named(target: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason) as caught:
        Spec(target).resolve()
    assert repr(target) in str(caught.value)


def test_wrappers_are_folded_from_the_inside_out() -> None:
    outer, inner = Spec("mqlab.probes.faults:FaultyCore", {"fail_step": 1}), Spec("mqlab.probes.faults:FaultyCore", {"fail_step": 2})
    core = Wiring(Spec("mqlab.engine.echo:build"), wraps=(inner, outer)).build_core()
    assert isinstance(core, FaultyCore) and core._faults.fail_step == 1
    assert isinstance(core._core, FaultyCore) and core._core._faults.fail_step == 2
    assert isinstance(core._core._core, EchoCore)


def test_without_wrappers_the_core_is_the_plain_one() -> None:
    assert type(Wiring(Spec("mqlab.engine.echo:build")).build_core()) is EchoCore


def test_a_wiring_is_picklable() -> None:
    wiring = Wiring.of(EngineConfig(num_kv_blocks=64), codec="pickle")
    assert pickle.loads(pickle.dumps(wiring)) == wiring
