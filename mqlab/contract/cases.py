"""Which checks of the contract say something about a topology, by its name or its file."""

from __future__ import annotations

import inspect
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any, Literal

from mqlab.contract import NAMES
from mqlab.contract.messages import Case
from mqlab.contract.options import CheckConfig
from mqlab.contract.rig import Check, Rig, applies, checks_of
from mqlab.contract.themes import THEMES
from mqlab.errors import ConfigError
from mqlab.topologies import Layout, find_layout, layout_label, make_client
from mqlab.topologies.userfile import is_file

_GIVEN = ("name", "make", "codec", "own_process")


def rig_of(topology: str, codec: str = "msgpack") -> Rig:
    """A topology as a rig. What its client does not tell, its module may: ``RIG = {"sees_hangs": False}``.

    Raises:
        ConfigError: no such topology, or RIG says what no rig has.
    """
    layout = find_layout(topology)
    place = str(Path(topology).expanduser().resolve()) if is_file(topology) else topology  # scripts of the checks run elsewhere
    name = layout_label(topology).replace("_", "-") + ("" if codec == "msgpack" else f"-{codec}")
    return Rig(name, partial(make_client, place), codec=codec, own_process=layout.own_process, **_told(layout))


def _told(layout: Layout) -> dict[str, Any]:
    told = getattr(layout.module, "RIG", {})
    if not isinstance(told, dict):
        raise ConfigError(f"RIG of {layout.module.__file__} is {told!r}; it must be a dict of what its client does not tell")
    known = [one.name for one in fields(Rig) if one.name not in _GIVEN]
    if unknown := sorted(set(told) - set(known)):
        raise ConfigError(f"RIG of {layout.module.__file__} has {unknown}; it may have {', '.join(known)}")
    return told


def cases_of(config: CheckConfig) -> tuple[Rig, dict[str, Check], list[Case]]:
    """The rig, its checks by name, and each check that was asked for, in order.

    Raises:
        ConfigError: no such topology; no check has one of the words.
    """
    rig = rig_of(config.topology, config.codec)
    found = [(name, check) for name, theme in zip(NAMES, THEMES, strict=True) for check in checks_of(theme)]
    cases = [_case(theme, check, _skipped(check, rig, config.full)) for theme, check in found]
    words = (config.only or "").split()
    asked = [case for case in cases if not words or any(word in f"{case.theme}.{case.name}" for word in words)]
    if not asked:
        raise ConfigError(f"--only={config.only!r}: no check has one of these words in its name; the themes are {', '.join(NAMES)}")
    return rig, {_name(check): check for _, check in found}, asked


def _name(check: Check) -> str:
    return check.__name__.removeprefix("check_")


def _case(theme: str, check: Check, skipped: Literal["", "does not apply", "left out"]) -> Case:
    where = f"{inspect.getsourcefile(check)}:{inspect.getsourcelines(check)[1]}"
    return Case(theme, _name(check), _demand(check), where, skipped)


def _demand(check: Check) -> str:
    """What a check says of itself; those that say nothing are named well, and their module says what they are about."""
    about = (inspect.getdoc(inspect.getmodule(check)) or "").partition(".")[0]
    said = inspect.getdoc(check) or f"{_name(check).replace('_', ' ')}. {about}."
    return " ".join(said.split())


def _skipped(check: Check, rig: Rig, full: bool) -> Literal["", "does not apply", "left out"]:
    if not applies(check, rig):
        return "does not apply"
    return "left out" if hasattr(check, "full") and not full else ""
