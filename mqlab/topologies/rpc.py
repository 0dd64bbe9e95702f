"""A socket per call.

    front process (asyncio)                        engine process (asyncio, uvloop)
      DEALER ── request ──────────────────────►┐
             ◄─ a message a step of its own ───┤     ROUTER (bind) ─► a task per message ─► asynchronous engine
      DEALER ── abort ───────── ack ◄──────────┤                                            (the ``aio`` layout)
      DEALER ── call ────────── reply ◄────────┘

Reproduces: vLLM's RPC front end (v0.5.4, PR 6883), over ipc as from v0.5.5 on: every request, abort and call opens a socket, connects,
sends, reads, closes. Leaves out: TCP, the liveness ping (see mqlab.topologies.conversation for that and what is different).

Known faults, kept. R requests hold R sockets and R connections: beyond the context's ``max_sockets``, or the process's ``ulimit -n``, a
request cannot open its own. That is ``Overloaded``, with zmq's own error as its cause: nothing was sent, and later it may go; the system
answered with an internal error. With a high-water mark the ROUTER drops what a front that does not read has no room for, and the stream
that it was meant for ends wrong, or never.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from mqlab.config import check
from mqlab.topologies.conversation import ConversingClient
from mqlab.types import Edge, Shape
from mqlab.wire.rundir import RunDir
from mqlab.wire.sockets import SocketSet
from mqlab.wire.spec import Spec
from mqlab.wire.wiring import Wiring

EDGE = "rpc"


@dataclass(frozen=True)
class Options:
    """What can be chosen.

    Attributes:
        max_sockets: of the front's context (the library's default is 1023); None raises it to SOCKET_LIMIT, 65,535.
        hwm: high-water mark of every socket (the library's default is 1000); 0 is unlimited.
    """

    max_sockets: int | None = None
    hwm: int = 0

    def __post_init__(self) -> None:
        check(self.max_sockets is None or self.max_sockets > 0, self, "max_sockets", "must be above 0, or None for as many as can be")
        check(self.hwm >= 0, self, "hwm", "must not be negative; 0 is unlimited")


PRESETS = {"historical": Options(max_sockets=1023, hwm=1000), "best": Options()}
RIG = {"merges": False, "streams": 1000}
"""What the contract must know: messages queue in the sockets; a stream takes two files of this process."""


class RpcClient(ConversingClient):
    """The front's side."""

    shape = Shape(
        "rpc",
        processes=(("front", ("event loop",)), ("engine", ("event loop", "device wait"))),
        edges=(
            Edge("front", "engine", "DEALER→ROUTER", "a socket per request, abort, call", EDGE),
            Edge("engine", "front", "ROUTER→DEALER", "a message per request and step", EDGE),
        ),
    )

    def __init__(self, wiring: Wiring, options: Options = PRESETS["best"], *, log_to_terminal: bool = False) -> None:
        super().__init__(wiring, options.max_sockets, log_to_terminal=log_to_terminal)
        self._hwm = options.hwm

    def _entry(self, run_dir: RunDir) -> Spec:
        self._address = run_dir.ipc(EDGE)
        socket = {"kind": "router", "address": self._address, "hwm": self._hwm}
        return Spec("mqlab.topologies.rpc_server:run_engine", {"wiring": self._wiring, **socket})

    def _dial(self, sockets: SocketSet[Any]) -> Any:
        return sockets.connect("dealer", self._address, hwm=self._hwm)
