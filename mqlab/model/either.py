"""The runner of a config: one that computes, several that share a model, or one on a simulated device. What is not asked for is not
imported."""

from __future__ import annotations

from typing import Any

from mqlab.config import EngineConfig, check
from mqlab.models.simulated import is_simulated
from mqlab.plan import Runner


def build(config: EngineConfig) -> Runner:
    """A runner that is ready.

    Raises:
        ConfigError: a limit of the config does not fit the model.
        ModelError: the model, or the device, cannot be found, read or served.
    """
    return _module(config).build(config)


def foresee(config: EngineConfig) -> None:
    """See whether ``build`` could, as far as one can without memory.

    Raises:
        ConfigError, ModelError: as ``build``.
    """
    _module(config).foresee(config)


def _module(config: EngineConfig) -> Any:
    if is_simulated(config.model):
        from mqlab.model import sim

        limit = "is not possible for a simulated device, which is one; pass 1"
        check(config.tensor_parallel_size == 1, config, "tensor_parallel_size", limit)
        return sim
    if config.tensor_parallel_size > 1:
        from mqlab.model.parallel import load as parallel

        return parallel
    from mqlab.model import load  # and with it torch, which takes seconds

    return load
