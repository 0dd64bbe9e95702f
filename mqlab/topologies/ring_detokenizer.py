"""The detokenizer of ``detok_ring``: it never sees a request, only rows of steps, and keeps a bounded number of texts."""

from __future__ import annotations

from pathlib import Path

import zmq

from mqlab.client.remote import page_of
from mqlab.engine.sequence import Key
from mqlab.text.current import CurrentTokenizer
from mqlab.text.detokenizer import Detokenizer
from mqlab.topologies.columns import TokenColumns, Want, text_columns
from mqlab.topologies.detok_ring import Addresses, growth_of
from mqlab.topologies.helperloop import DETOKENIZER, work_off
from mqlab.types import Delta, Event, Failure, Model, SamplingParams, Step
from mqlab.wire.report import Reporter
from mqlab.wire.sockets import SocketSet, sync_sockets
from mqlab.wire.wiring import Wiring

_TEXT = int(Want.TEXT)


class RingDetokenizer:
    """The detokenizer's side: one loop, one thread.

    Args:
        sockets: opened here, closed by whoever gave them.
        wiring: tells codec and output.
        addresses: of all sockets.
        max_states: requests whose text is in the making; beyond, the oldest one fails.

    Attributes:
        input: what it receives from.
    """

    def __init__(self, sockets: SocketSet[zmq.Socket[bytes]], wiring: Wiring, addresses: Addresses, max_states: int) -> None:
        self._limit = max_states
        self._codec = wiring.build_codec()
        self._decode = self._codec.decoder(TokenColumns | Event)
        self._growth = growth_of(wiring)
        self._current = CurrentTokenizer()
        self._open: dict[Key, Detokenizer] = {}
        self.input = sockets.bind("pull", addresses.detokenizer)
        self._front = sockets.connect("push", addresses.front)

    def take(self) -> None:
        """Wait for one message, and work it off."""
        self.work(self.input.recv())

    def work(self, frame: bytes) -> None:
        """Work one message off."""
        message = self._decode(frame)
        if type(message) is TokenColumns:
            self._front.send(self._codec.encode(text_columns(self._filled(message))))
        elif type(message) is Model:
            self._current.take(message.info)
        else:
            self._front.send(frame)

    def _filled(self, columns: TokenColumns) -> Step:
        step = columns.step()
        if self._growth is not None:
            step = self._growth.cut(step)
        if self._current.tokenizer is not None:
            for delta, wanted in zip(step.deltas, columns.wants, strict=True):
                if wanted & _TEXT:
                    self._fill(delta, step.client, wanted)
        return step if self._growth is None else self._growth.grow(step)

    def _fill(self, delta: Delta, client: int, wanted: int) -> None:
        key = client, delta.id
        detokenizer = self._open.get(key)
        if detokenizer is None:
            if not wanted & Want.FIRST:
                delta.finish, delta.error = "error", _forgotten(self._limit)
                return
            detokenizer = self._begin(key, wanted)
        delta.text = detokenizer.push(delta.tokens, delta.finish)
        if delta.finish is not None:
            del self._open[key]

    def _begin(self, key: Key, wanted: int) -> Detokenizer:
        assert self._current.tokenizer is not None
        if len(self._open) == self._limit:
            del self._open[next(iter(self._open))]
        params = SamplingParams(skip_special_tokens=not wanted & Want.SPECIAL, include_stop_str_in_output=bool(wanted & Want.LAST))
        detokenizer = self._open[key] = Detokenizer(self._current.tokenizer, params)
        return detokenizer


def _forgotten(limit: int) -> Failure:
    return Failure("failed", f"the detokenizer keeps the state of {limit} requests (max_states), and this one was the oldest; raise it")


def run_detokenizer(reporter: Reporter, run_dir: Path, *, wiring: Wiring, max_states: int, addresses: Addresses) -> None:
    """The detokenizer process: bind, learn what the engine is, serve."""
    detokenizer = RingDetokenizer(sync_sockets(wiring.engine_socket.build), wiring, addresses, max_states)
    detokenizer.take()
    reporter.ready()
    work_off(detokenizer.input, detokenizer.input.recv, detokenizer.work, page_of(run_dir, DETOKENIZER), wiring.timing.idle_interval)
