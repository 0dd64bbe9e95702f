"""What the processes of the servers under measurement are told, as JSON on their command line."""

from __future__ import annotations

import msgspec

FLOOR_READY = "floor serving on "


class ServedSetup(msgspec.Struct, frozen=True):
    """mqlab's own server; see FrontendConfig and Load."""

    model: str
    topology: str
    api_server_count: int
    record: bool
    streams: int
    step_s: float


class FloorSetup(msgspec.Struct, frozen=True):
    """What each stream of the floor is made of (see probe.Answer), and the seconds between its chunks."""

    head: bytes
    chunk: bytes
    tail: bytes
    step_s: float
