"""Rank 0's hold on the other ranks: it launches them, hears what they say, notices their end, and ends them."""

from __future__ import annotations

import contextlib
import logging
import os
import selectors
import threading
import time
import weakref
from collections.abc import Callable
from concurrent.futures import Future

import msgspec

from mqlab.errors import MqlabError, RankDied
from mqlab.model.parallel.messages import Answer, Close, Done, Failed, Hello, Order, Refused
from mqlab.model.parallel.peers import Death, Peer
from mqlab.wire.leaving import on_leave

logger = logging.getLogger("mqlab.model")

_GRACE_S = 1.0
_REMOTE_GRACE_S = 10.0
"""For one that torchrun has started, and that may still be at what it was told before."""

SETTLE_S = 2.0
"""How long a broken collective waits to hear who broke it."""


class _Held:
    """What the thread and the owner share, apart from the owner, which can so be dropped."""

    def __init__(self) -> None:
        self.peers: list[Peer] = []
        self.death: Death | None = None
        self.died = threading.Event()
        self.on_death: Callable[[], None] = _nothing
        self.noting = threading.RLock()
        self.patient = True
        self.closing = False
        self.told, self._tell = os.pipe()
        self.thread: threading.Thread | None = None

    def note(self, death: Death) -> None:
        """A rank ended. The first that did so of itself is the cause; the others fail because of it."""
        with self.noting:
            if self.death is None or (self.death.lost and not death.lost):
                self.death = death
            if not death.lost:
                self.died.set()
            self.on_death()
            for peer in self.peers:
                peer.answers.put(death)

    def stop(self, patient: bool) -> None:
        """End the thread, and with it the processes, at once or when they have had their time. Idempotent, from any thread."""
        with self.noting:
            if not self.closing:
                self.patient, self.closing = patient, True
                os.write(self._tell, b"x")
        if self.thread is not None and self.thread is not threading.current_thread():  # a collector of garbage runs anywhere
            self.thread.join()

    def over(self) -> None:
        """Nothing is left to be told."""
        with self.noting:
            self.closing = True
            os.close(self._tell)
            os.close(self.told)


class Workers:
    """The other ranks, from their launch to their end. They are launched, watched and ended by a thread that lives as long as they do: the
    kernel ties a child's parent-death signal to the thread that launched it.

    Args:
        open_peers: makes them, in that thread.
        release: called there before they are ended.

    Raises:
        OSError: a process could not be launched.
    """

    def __init__(self, open_peers: Callable[[], list[Peer]], release: Callable[[], None] = lambda: None) -> None:
        held = self._held = _Held()
        opened: Future[None] = Future()
        held.thread = threading.Thread(target=_tend, args=(held, open_peers, release, opened), name="mqlab-ranks", daemon=True)
        held.thread.start()
        self._finalizer = weakref.finalize(self, held.stop, True)
        on_leave(_Leaving(self))
        opened.result()

    def tell(self, order: Order) -> None:
        """Say something to all of them.

        Raises:
            RankDied: one is gone.
        """
        self.check()
        for peer in self._held.peers:
            try:
                peer.line.send(order)
            except OSError as error:
                raise self.cause_of(error) from error

    def hear(self) -> list[Refused]:
        """Wait until each has answered what was asked; those who refuse.

        Raises:
            RankDied: one is gone.
        """
        answers = [self._answer(peer) for peer in self._held.peers]
        return [answer for answer in answers if isinstance(answer, Refused)]

    def ask(self, order: Order) -> None:
        """Say something, and wait until all have done it.

        Raises:
            ConfigError, ModelError: one refused, for this reason. RankDied: one is gone.
        """
        self.tell(order)
        for refused in self.hear():
            raise refused.error()

    def _answer(self, peer: Peer) -> Answer:
        answer = peer.answers.get()
        if isinstance(answer, Death):
            raise self._cause().error()
        return answer

    def check(self) -> None:
        """See that all are there.

        Raises:
            RankDied: one is gone.
        """
        if self._held.death is not None:
            raise self._cause().error()

    def on_death(self, call: Callable[[], None]) -> None:
        """Have something called when one is gone: in the thread, or at once where one is already."""
        with self._held.noting:
            self._held.on_death = call
            if self._held.death is not None:
                call()

    def give_up(self, cause: str) -> None:
        """Rank 0 itself cannot go on: end the others, who may wait for it. From now on this is the cause of whatever fails."""
        self._held.note(Death(cause))
        self.close()

    def cause_of(self, error: Exception) -> MqlabError:
        """What lies behind a collective that failed, or a message that could not be sent."""
        self._held.died.wait(SETTLE_S)
        death = self._held.death
        return RankDied(f"another rank of the model was lost: {error}") if death is None else death.error()

    def _cause(self) -> Death:
        """Of a death that is known: whoever was first, if that is heard in time."""
        self._held.died.wait(SETTLE_S)
        death = self._held.death
        assert death is not None, "one is known"
        return death

    def close(self) -> None:
        """End them, in bounded time: idle ones leave at once, others are killed. Idempotent."""
        self._finalizer()

    def leave(self) -> None:
        """End them now, for the process ends."""
        self._held.stop(False)


class _Leaving:
    """What an ending process does about workers that it still has; it must not keep those that it has no more."""

    def __init__(self, workers: Workers) -> None:
        self._workers = weakref.ref(workers)

    def __call__(self) -> None:
        if (workers := self._workers()) is not None:
            workers.leave()


def _tend(held: _Held, open_peers: Callable[[], list[Peer]], release: Callable[[], None], opened: Future[None]) -> None:
    """The thread."""
    try:
        held.peers = open_peers()
    except BaseException as error:
        held.over()
        opened.set_exception(error)
        return
    opened.set_result(None)
    try:
        _watch(held)
        # First what is left of them on the disk: this process may be killed before they have ended, and then they do it, if they live.
        release()
        _end(held)
    finally:
        held.over()


def _watch(held: _Held) -> None:
    """Take what the ranks say until they are to end."""
    with selectors.DefaultSelector() as selector:
        selector.register(held.told, selectors.EVENT_READ)
        for peer in held.peers:
            selector.register(peer.line, selectors.EVENT_READ, peer)
        while not held.closing:
            for key, _ in selector.select():
                if key.data is not None and not _hear(held, key.data):
                    selector.unregister(key.fileobj)


def _hear(held: _Held, peer: Peer) -> bool:
    """Take what a rank says; False when it says nothing more."""
    try:
        message = peer.line.receive()
    except msgspec.MsgspecError as error:
        message = Failed(f"it said what is not understood ({error}); all ranks must run the same version of mqlab", "")
    if isinstance(message, Hello):
        peer.hello = message
    elif isinstance(message, Done | Refused):
        peer.answers.put(message)
    elif not held.closing:
        death = peer.failed(message) if isinstance(message, Failed) else peer.gone()
        if death.refused is None and not death.lost:
            logger.error("%s", death.cause)
        held.note(death)
    return isinstance(message, Hello | Done | Refused)


def _end(held: _Held) -> None:
    for peer in held.peers:
        if peer.child is None:
            with contextlib.suppress(OSError):  # it is gone already
                peer.line.send(Close())
        else:
            peer.line.end()
    begin = time.monotonic()
    for peer in held.peers:
        grace_s = _REMOTE_GRACE_S if peer.child is None else _GRACE_S
        peer.end(begin + grace_s * held.patient)


def _nothing() -> None:
    """Nobody wants to be called."""
