"""A ``Group`` over torch.distributed: NCCL between GPUs, gloo between CPUs and for what is agreed on before there are tensors.

The backends are used by themselves, without torch's global default group: a process may open one engine after the other, or two at once.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import AllgatherOptions, AllreduceOptions, BroadcastOptions, PrefixStore, Store

from mqlab.config import leave_nccl_errors

_NO_LIMIT = timedelta(days=3650)
"""Of a collective: one rank may load, or compile, for as long as it takes. A hang is the step limit's to find, and a death ends it."""

_CONNECT_LIMIT = timedelta(seconds=120)
"""For the ranks to find each other, which all are there by then."""


class PeerLost(RuntimeError):
    """A collective failed: another rank is gone, or has failed before this one."""


class TorchGroup:
    """The ranks that share a model, as one of them sees it.

    Args:
        store: where they find each other; empty, and the same for all.
        rank: which of them this is.
        size: how many there are.
        device: where the tensors are: ``cpu`` or ``cuda``, the current one.
        local: whether all are on this machine, and need no network but the loopback.

    Raises:
        PeerLost: one did not come.

    Attributes:
        closed: this rank takes part no more.
    """

    def __init__(self, store: Store, rank: int, size: int, device: str = "cpu", *, local: bool = True) -> None:
        self.rank = rank
        self.size = size
        self.closed = self._lost = False
        store.set_timeout(_CONNECT_LIMIT)
        try:
            self._control: Any = _gloo(PrefixStore("control", store), rank, size, local)
            self._tensors: Any = self._control if device == "cpu" else _nccl(PrefixStore("tensors", store), rank, size)
        except RuntimeError as error:
            raise PeerLost(f"the {size} ranks did not find each other: {error}") from error
        self._to_abort = threading.Lock()

    def all_reduce(self, x: Tensor) -> Tensor:
        """See Group.all_reduce."""
        self._check()
        _done(self._tensors.allreduce, [x], _plain(AllreduceOptions()))
        return x

    def all_gather(self, x: Tensor, widths: tuple[int, ...]) -> Tensor:
        """See Group.all_gather."""
        self._check()
        each = max(widths)
        own = x.contiguous() if x.shape[1] == each else torch.nn.functional.pad(x, (0, each - x.shape[1]))
        gathered = x.new_empty((self.size * len(x), each))
        _done(self._tensors._allgather_base, gathered, own, _plain(AllgatherOptions()))
        parts = gathered.unflatten(0, (self.size, len(x)))
        return torch.cat([part[:, :width] for part, width in zip(parts, widths, strict=True)], 1)

    def share(self, x: Tensor) -> Tensor:
        """See Group.share."""
        self._check()
        _done(self._tensors.broadcast, [x], _from_first())
        return x

    def least(self, count: int) -> int:
        """See Group.least."""
        self._check()
        options = AllreduceOptions()
        options.reduceOp = dist.ReduceOp(dist.ReduceOp.MIN)
        counts = torch.tensor([count])
        _done(self._control.allreduce, [counts], _plain(options))
        return int(counts)

    def abort(self) -> None:
        """End what waits for another rank, now and from now on; from any thread, and at once. gloo sees by itself that one is gone, NCCL
        would wait for ever."""
        self._lost = True
        if self._tensors is not self._control and self._to_abort.acquire(blocking=False):
            # What runs ends as soon as this begins, but NCCL returns only when the last CUDA graph with a collective in it is gone
            # (commDestroySync, from 2.26 on), and whoever calls this has yet to free them.
            threading.Thread(target=self._tensors.abort, name="mqlab-abort", daemon=True).start()

    def close(self) -> None:
        """See Group.close: nobody is waited for."""
        self.closed = True
        self.abort()
        if self._tensors is self._control:
            self._tensors = None
        self._control = None  # gloo closes its connections when it is dropped, and neither by ``shutdown`` nor by ``abort``

    def _check(self) -> None:
        """Before each collective, for one that nobody else takes part in would not end: NCCL even makes what it needs for one anew."""
        if self._lost:
            raise PeerLost("this rank has left the others" if self.closed else "another rank is gone")


def _done(collective: Callable[..., Any], *args: Any) -> None:
    """Run one: on a GPU it is enqueued on the current stream, on a CPU it is done on return."""
    work: Any = None
    try:
        work = collective(*args)
        if work is not None:
            work.wait()
    except RuntimeError as error:
        del collective, work  # whoever keeps the error keeps this frame, and would keep the connections open
        raise PeerLost(f"a collective of torch.distributed failed: {error}") from error


def _plain(options: Any) -> Any:
    # Not asynchronous: on a GPU the kernel goes to the caller's own stream, where a CUDA graph that is being captured finds it.
    options.asyncOp = False
    return options


def _from_first() -> BroadcastOptions:
    options = _plain(BroadcastOptions())
    options.rootRank = options.rootTensor = 0
    return options


def _gloo(store: Store, rank: int, size: int, local: bool) -> Any:
    if not local:  # this constructor follows the host's name, or GLOO_SOCKET_IFNAME
        return dist.ProcessGroupGloo(store, rank, size, _NO_LIMIT)
    options: Any = dist.ProcessGroupGloo._Options()  # pyright: ignore[reportAttributeAccessIssue]
    options._devices = [dist.ProcessGroupGloo.create_device(hostname="127.0.0.1")]
    options._threads = 1
    options._timeout = _NO_LIMIT
    return dist.ProcessGroupGloo(store, rank, size, options)  # pyright: ignore[reportArgumentType]


def _nccl(store: Store, rank: int, size: int) -> Any:
    leave_nccl_errors()
    options: Any = dist.ProcessGroupNCCL.Options()
    options._timeout = _NO_LIMIT
    group: Any = dist.ProcessGroupNCCL(store, rank, size, options)
    # Now, and not at the first collective: that may be minutes from now, and whoever is gone by then would be waited for without an end,
    # for there is nothing yet that an abort could end.
    group.eager_connect_single_device(torch.device("cuda", torch.cuda.current_device()))
    return group
