"""Whether an engine can take a request at all, whatever is in it."""

from __future__ import annotations

from mqlab.errors import ModelUnavailable
from mqlab.types import ModelInfo, Request

_MISSING = {
    "unloaded": "no model is loaded: {name!r} was unloaded; load one, and send the request again",
    "asleep": "model {name!r} sleeps; wake it up, and send the request again",
}


def check_loaded(info: ModelInfo) -> None:
    """Refuse whatever needs a model where there is none.

    Raises:
        ModelUnavailable: it was unloaded, or sleeps.
    """
    if info.state != "ready":
        raise ModelUnavailable(_MISSING[info.state].format(name=info.name))


def check_available(info: ModelInfo, request: Request) -> None:
    """Refuse a request that the model cannot take just now, or that was made for another one.

    Raises:
        ModelUnavailable: it may be sent again.
    """
    check_loaded(info)
    if request.epoch is not None and request.epoch != info.epoch:
        raise ModelUnavailable(
            f"request {request.id!r} was made for epoch {request.epoch} of the engine, whose model {info.name!r} is epoch {info.epoch}; "
            "send it again: its prompt must be tokenised anew"
        )
