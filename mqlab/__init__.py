"""mqlab: a research workbench for LLM serving engines.

Names are loaded on first use, so that ``import mqlab`` costs next to nothing and loads neither torch nor IPython.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mqlab.errors import (
        BenchError,
        CallError,
        CallTimeout,
        ClientClosedError,
        ConfigError,
        EngineDeadError,
        EngineStartError,
        FrontError,
        InvalidRequest,
        ModelError,
        ModelUnavailable,
        MqlabError,
        Overloaded,
        ProfileError,
        RankDied,
        RequestError,
        RequestFailed,
        TraceError,
    )
    from mqlab.front.llm import LLM
    from mqlab.params import StructuredOutputs
    from mqlab.types import Completion, SamplingParams

    __version__: str

__all__ = [
    "LLM",
    "BenchError",
    "CallError",
    "CallTimeout",
    "ClientClosedError",
    "Completion",
    "ConfigError",
    "EngineDeadError",
    "EngineStartError",
    "FrontError",
    "InvalidRequest",
    "ModelError",
    "ModelUnavailable",
    "MqlabError",
    "Overloaded",
    "ProfileError",
    "RankDied",
    "RequestError",
    "RequestFailed",
    "SamplingParams",
    "StructuredOutputs",
    "TraceError",
    "__version__",
    "load_ipython_extension",
]

_ELSEWHERE = {
    "LLM": "mqlab.front.llm",
    "Completion": "mqlab.types",
    "SamplingParams": "mqlab.types",
    "StructuredOutputs": "mqlab.params",
}


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("mqlab")
    if name not in __all__:
        raise AttributeError(f"module 'mqlab' has no attribute {name!r}")
    return getattr(importlib.import_module(_ELSEWHERE.get(name, "mqlab.errors")), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def load_ipython_extension(ipython: Any) -> None:
    """``%load_ext mqlab``: register the magics."""
    from mqlab.lab.magics import load_ipython_extension as load

    load(ipython)
