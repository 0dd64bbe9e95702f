"""A socket per call, all but one of them inside the front process.

    front process (asyncio)                                                 engine process (asyncio, uvloop)
      DEALER ── request ───►┐                                                 DEALER (connect)
             ◄─ messages ───┤  ROUTER (bind, inproc) ◄─ proxy ─► DEALER ◄────►   └► a task per message ─► asynchronous engine
      DEALER ── abort, ack ─┤                                    (bind, ipc)                              (the ``aio`` layout)
      DEALER ── call ───────┘

Reproduces: vLLM's RPC front end behind a proxy (PR 7394, v0.5.5 to v0.6.1). Every request, abort and call still opens a socket, but inside
the process; a proxy on the same event loop carries their messages, with the identity of the socket in front, over one connection. Its
first version is one task that polls both ends, its second one task for each direction that copies no frame (PR 7957). Leaves out: the
timeouts of its replies, the liveness ping (see mqlab.topologies.conversation for that and what is different).

Known faults, kept. Every message crosses the front's loop twice. A socket inside the process still costs a file, so that
``ulimit -n`` still limits requests (issue 7920): beyond it they are ``Overloaded``, as in ``rpc``. Half as many requests as the library
has sockets may be open, one for the request and one for its abort; more are refused at once, as ``Overloaded`` (HTTP 503).
"""

from __future__ import annotations

import asyncio
import itertools
import weakref
from dataclasses import dataclass
from typing import Any, Literal

import zmq
import zmq.asyncio

from mqlab.client.remote import call_weak
from mqlab.config import check
from mqlab.topologies.conversation import ConversingClient
from mqlab.topologies.rpc_server import BURST
from mqlab.types import Edge, ModelInfo, Shape
from mqlab.wire.rundir import RunDir
from mqlab.wire.sockets import SocketSet
from mqlab.wire.spec import Spec
from mqlab.wire.wiring import Wiring

EDGE, INSIDE = "proxy", "inproc://calls"
_LEAST_SOCKETS = 2000


@dataclass(frozen=True)
class Options:
    """What can be chosen.

    Attributes:
        proxy: ``one`` task that polls both ends, or ``two`` tasks, one for each direction.
        max_sockets: of the front's context; None raises it to SOCKET_LIMIT, 65,535. Half of it, less two, is the limit of open requests.
        hwm: high-water mark of every socket; 0 is unlimited. At 1000 (the library's default) messages were lost under load.
    """

    proxy: Literal["one", "two"] = "two"
    max_sockets: int | None = None
    hwm: int = 0

    def __post_init__(self) -> None:
        enough = self.max_sockets is None or self.max_sockets >= _LEAST_SOCKETS
        check(enough, self, "max_sockets", f"must be at least {_LEAST_SOCKETS}, or None for as many as can be")
        check(self.hwm >= 0, self, "hwm", "must not be negative; 0 is unlimited")


PRESETS = {"historical": Options(proxy="one"), "best": Options()}
RIG = {"merges": False, "streams": 1000}
"""What the contract must know: messages queue in the sockets; a stream takes a file of this process."""


class RpcProxyClient(ConversingClient):
    """The front's side."""

    shape = Shape(
        "rpc_proxy",
        processes=(("front", ("event loop", "proxy")), ("engine", ("event loop", "device wait"))),
        edges=(
            Edge("front", "engine", "DEALER→DEALER", "requests, aborts, calls", EDGE),
            Edge("engine", "front", "DEALER→DEALER", "a message per request and step", EDGE),
        ),
    )

    def __init__(self, wiring: Wiring, options: Options = PRESETS["best"], *, log_to_terminal: bool = False) -> None:
        super().__init__(wiring, options.max_sockets, log_to_terminal=log_to_terminal)
        self._options = options

    def _entry(self, run_dir: RunDir) -> Spec:
        socket = {"kind": "dealer", "address": run_dir.ipc(EDGE), "hwm": self._options.hwm}
        return Spec("mqlab.topologies.rpc_server:run_engine", {"wiring": self._wiring, **socket})

    def _open_before(self, sockets: SocketSet[Any], run_dir: RunDir) -> None:
        super()._open_before(sockets, run_dir)
        self._outside = sockets.bind("dealer", run_dir.ipc(EDGE), hwm=self._options.hwm)
        self._inside = sockets.bind("router", INSIDE, hwm=self._options.hwm)

    async def _handshake(self, sockets: SocketSet[Any], run_dir: RunDir) -> ModelInfo:
        assert self._hold is not None and self._max_sockets is not None
        lose = weakref.WeakMethod(self._proxy_ended)
        for proxy in self._proxies():
            task = self._hold.loop.create_task(proxy)
            task.add_done_callback(lambda done: call_weak(lose, done))
            self._hold.tasks.append(task)
        own = self._max_sockets // 2 - 2
        self.limit = own if self.limit is None else min(self.limit, own)
        return await super()._handshake(sockets, run_dir)

    def _proxy_ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and isinstance(error := task.exception(), Exception):
            self.lose(error)

    def _proxies(self) -> list[Any]:
        ends = self._inside, self._outside
        return [_poll_both(*ends)] if self._options.proxy == "one" else [_forward(*ends), _forward(*reversed(ends))]

    def _dial(self, sockets: SocketSet[Any]) -> Any:
        return sockets.connect("dealer", INSIDE, hwm=self._options.hwm)


async def _forward(source: Any, target: Any) -> None:
    """One direction: the identity in front stays as it is."""
    for turn in itertools.count(1):
        await target.send_multipart(await source.recv_multipart(copy=False), copy=False)
        if turn % BURST == 0:
            await asyncio.sleep(0)


async def _poll_both(inside: Any, outside: Any) -> None:
    """Both directions, a message of each at a time."""
    poller = zmq.asyncio.Poller()
    poller.register(inside, zmq.POLLIN)
    poller.register(outside, zmq.POLLIN)
    while True:
        ready = dict(await poller.poll())
        for source, target in ((inside, outside), (outside, inside)):
            if source in ready:
                await target.send_multipart(await source.recv_multipart())
