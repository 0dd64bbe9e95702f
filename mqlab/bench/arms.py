"""From the settings of a comparison to its arms: what each one runs, and what it differs in."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, get_type_hints

import msgspec

from mqlab.bench.compare_options import AXES, SYNC, CompareConfig
from mqlab.config import EngineConfig, Timing
from mqlab.errors import ConfigError
from mqlab.topologies import TOPOLOGIES, layout_label, layout_options

CONTROL = "without probes"
_ENGINE = {one.name: one for one in fields(EngineConfig)}


@dataclass(frozen=True, kw_only=True)
class Arm:
    """One side of a comparison, picklable.

    Attributes:
        label: what it differs in.
        topology: a layout's name, or ``sync``.
        record: where its probes write; None runs without them.
        options: of the layout, that differ from the preset.
        http: whether its load comes over HTTP.
        rate: requests a second; 0 hands over all at once.
    """

    label: str
    engine: EngineConfig
    topology: str
    preset: str
    codec: str
    output: str
    detokenize: str
    concurrency: int
    cores: str | None = None
    http: bool = False
    rate: float = 0.0
    options: Mapping[str, Any] = field(default_factory=dict)
    timing: Timing = field(default_factory=Timing)
    record: Path | None = None

    @property
    def is_sync(self) -> bool:
        """Whether it has no client: the core is stepped in a plain loop."""
        return self.topology == SYNC

    def as_record(self) -> dict[str, Any]:
        """What belongs beside its numbers; ``recording`` is below the recordings of the cache."""
        recording = None if self.record is None else "/".join(self.record.parts[-2:])
        return {name: getattr(self, name) for name in AXES} | {"options": dict(self.options), "recording": recording}


def make_arms(engine: EngineConfig, config: CompareConfig, timing: Timing) -> list[Arm]:
    """The arms, in the order in which they run; the first is the baseline.

    Raises:
        ConfigError: an unknown setting or value, nothing to vary, or more than one setting without ``grid``.
    """
    knobs = _knobs(config)
    if sum(len(values) > 1 for values in knobs.values()) > 1 and not config.grid:
        raise ConfigError(f"more than one setting varies ({', '.join(knobs)}): vary one at a time, or add --grid for every combination")
    base = Arm(
        label="",
        engine=engine,
        timing=timing,
        **{name: getattr(config, name) for name in AXES},
    )
    arms = [_arm(base, dict(zip(knobs, values, strict=True))) for values in itertools.product(*knobs.values())]
    if len(arms) < 2:
        raise ConfigError(f"there is nothing to compare: {', '.join(arm.label for arm in arms)} is the only arm; name two values or more")
    return arms


def _knobs(config: CompareConfig) -> dict[str, list[str]]:
    """Values by setting, in the order given."""
    knobs: dict[str, list[str]] = {}
    if config.topologies is not None or config.vary is None:
        knobs["topology"] = _split(config.topologies or ",".join(TOPOLOGIES), "--topologies")
    for clause in filter(None, (config.vary or "").split(";")):
        name, equals, values = clause.partition("=")
        if not equals:
            raise ConfigError(f"--vary={clause!r} has no '=': write NAME=VALUE,VALUE")
        knobs[name.strip().removeprefix("--").replace("-", "_")] = _split(values, f"--vary {name}")
    return knobs


def _split(values: str, flag: str) -> list[str]:
    found = [value.strip() for value in values.split(",")]
    if not all(found) or len(set(found)) < len(found):
        raise ConfigError(f"{flag}={values!r}: give values separated by commas, each once")
    return found


def _arm(base: Arm, chosen: Mapping[str, str]) -> Arm:
    # The layout goes first, the preset second: which options there are depends on them.
    arm = replace(base, label=" ".join(_label(name, value) for name, value in chosen.items()))
    for name, value in sorted(chosen.items(), key=lambda item: (item[0] != "topology", item[0] != "preset")):
        arm = _set(arm, name, value)
    return checked(arm)


def checked(arm: Arm) -> Arm:
    """The arm, if it can run. A process for detokenising does so where it was named, and passes tokens on where it was not.

    Raises:
        ConfigError: an unknown layout, preset or option; settings that contradict each other.
    """
    if arm.detokenize != "none" and arm.engine.model == "echo":
        raise ConfigError(f"--detokenize={arm.detokenize!r} needs a model with a tokenizer; echo has none, echo:smollm2-135m has")
    if arm.http and (arm.is_sync or arm.detokenize == "none"):
        why = "sync has no front" if arm.is_sync else "a server speaks text; choose --detokenize front, engine or process"
        raise ConfigError(f"--http=True is not possible: {why}")
    if arm.is_sync:
        if arm.options:
            raise ConfigError(f"topology {SYNC!r} does not take these options: {sorted(arm.options)}; it has none")
        return arm
    chosen = layout_options(arm.topology, arm.preset, **arm.options)  # refuses what the layout does not have
    if hasattr(chosen, "detokenize"):
        return replace(arm, options={**arm.options, "detokenize": arm.detokenize == "process"})
    if arm.detokenize == "process":
        raise ConfigError(f"--detokenize='process' needs a layout with a process for it; {arm.topology} has none")
    return arm


def _label(name: str, value: str) -> str:
    if name == "topology":
        return layout_label(value)
    return value if name in ("preset", "codec", "output") else f"{name}={value}"


def _set(arm: Arm, name: str, value: str) -> Arm:
    if name in AXES:
        typed = _typed(name, value, get_type_hints(CompareConfig)[name])
        CompareConfig(**{name: typed})  # refuses what the setting itself refuses
        return replace(arm, **{name: typed})
    if name in _ENGINE:
        typed = _typed(name, value, get_type_hints(EngineConfig)[name])
        return replace(arm, engine=replace(arm.engine, **{name: typed}))
    hints = {} if arm.is_sync else get_type_hints(type(layout_options(arm.topology, arm.preset)))
    if name not in hints:
        known = [*AXES, *hints]
        raise ConfigError(f"--vary {name}: no such setting; there are {', '.join(known)}, and the engine's, see 'mqlab serve --help'")
    return replace(arm, options={**arm.options, name: _typed(name, value, hints[name])})


def _typed(name: str, value: str, hint: Any) -> Any:
    """The text as a value of the setting's type."""
    if value == "none" and type(None) in getattr(hint, "__args__", ()):
        return None
    if value in ("on", "off") and bool in (hint, *getattr(hint, "__args__", ())):
        value = "true" if value == "on" else "false"
    try:
        return msgspec.convert(value, hint, strict=False)
    except msgspec.ValidationError as error:
        why = "write true or false" if hint is bool else error
        raise ConfigError(f"--vary {name}: {value!r} is not valid: {why}") from None
