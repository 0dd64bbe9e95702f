"""Settings given as keyword arguments, as the configs that they belong to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any, TypeVar

from mqlab.bench.load_options import LoadConfig
from mqlab.bench.options import DatasetConfig
from mqlab.errors import ConfigError
from mqlab.types import ModelInfo

T = TypeVar("T")


def chosen(config: type[T], settings: Mapping[str, Any]) -> T:
    """A config with these settings.

    Raises:
        ConfigError: it has no such setting, or a value is impossible.
    """
    _check_known(settings, config)
    return config(**settings)


def load_settings(info: ModelInfo, settings: Mapping[str, Any]) -> tuple[LoadConfig, DatasetConfig]:
    """What to send to a session's server and from where; model and tokenizer are the session's own.

    Raises:
        ConfigError: neither config has such a setting, or a value is impossible.
    """
    _check_known(settings, LoadConfig, DatasetConfig)
    load = {name: value for name, value in settings.items() if name in _names(LoadConfig)}
    dataset = {name: value for name, value in settings.items() if name in _names(DatasetConfig)}
    return of_session(info, LoadConfig(**load)), DatasetConfig(**dataset)


def of_session(info: ModelInfo, load: LoadConfig) -> LoadConfig:
    """The load with the model and the tokenizer of a session, where it names none."""
    return replace(load, model=load.model or info.name, tokenizer=load.tokenizer or info.path or None)


def _check_known(settings: Mapping[str, Any], *configs: type) -> None:
    known = [name for config in configs for name in _names(config)]
    if unknown := sorted(settings.keys() - set(known)):
        raise ConfigError(f"unknown setting {unknown[0]!r}; there are {', '.join(known)}")


def _names(config: type) -> list[str]:
    return [one.name for one in fields(config)]
