"""The detokenizer of ``detok_chain``: a process between front and engine that knows every request before its first token."""

from __future__ import annotations

from pathlib import Path

import zmq

from mqlab.client.remote import page_of
from mqlab.engine.sequence import Key
from mqlab.text.current import CurrentTokenizer
from mqlab.text.detokenizer import Detokenizer
from mqlab.topologies.detok_chain import FRONT, Addresses
from mqlab.topologies.helperloop import DETOKENIZER, work_off
from mqlab.types import Abort, Delta, Model, Request, Step
from mqlab.wire.codecs import Codec
from mqlab.wire.report import Reporter
from mqlab.wire.sockets import SocketSet, sync_sockets
from mqlab.wire.wiring import Wiring


class Text:
    """What the detokenizer knows of a request.

    Attributes:
        ended: a stop string has ended it, and the engine, which was told to abort it, may not know yet.
        next: the request that waits for its id, as it was sent.
    """

    def __init__(self, request: Request) -> None:
        self._params = request.params
        self._plain = request.params.logprobs is not None or request.pooling is not None
        self._detokenizer: Detokenizer | None = None
        self.ended = False
        self.next: tuple[Request, bytes] | None = None

    def fill(self, delta: Delta, current: CurrentTokenizer) -> None:
        """Give a delta its text, up to a stop string if there is one; nothing where there is no tokenizer."""
        if self._plain or current.tokenizer is None:
            return
        if self._detokenizer is None:  # not before: the model, too, may have been swapped since the request was sent
            self._detokenizer = Detokenizer(current.tokenizer, self._params)
        if self._params.stop:
            self._search(self._detokenizer, delta)
        else:
            delta.text = self._detokenizer.push(delta.tokens, delta.finish)

    def _search(self, detokenizer: Detokenizer, delta: Delta) -> None:
        delta.text, pieces = detokenizer.push_each(delta.tokens, delta.finish)
        if (found := detokenizer.stop_reason) is not None:
            self.ended = delta.finish is None
            delta.tokens = delta.tokens[: len(pieces)]
            delta.finish, delta.stop_reason = "stop", found


class ChainDetokenizer:
    """The detokenizer's side: one loop, one thread.

    Args:
        sockets: opened here, closed by whoever gave them.
        codec: of all messages.
        addresses: of all sockets.
        detokenize: off, tokens pass through.

    Attributes:
        input: what it receives from.
    """

    def __init__(self, sockets: SocketSet[zmq.Socket[bytes]], codec: Codec, addresses: Addresses, *, detokenize: bool = True) -> None:
        self._sockets = sockets
        self._codec = codec
        self._addresses = addresses
        self._detokenize = detokenize
        self._current = CurrentTokenizer()
        self._open: dict[Key, Text] = {}
        self.input = sockets.bind("pull", addresses.to_detokenizer)
        self._front = sockets.connect("push", addresses.from_detokenizer)

    def meet_engine(self) -> None:
        """Wait for the engine's first word, which says what it is; by then it listens."""
        self.take()
        self._core = self._sockets.connect("push", self._addresses.to_engine_core)

    def take(self) -> None:
        """Wait for one message, and work it off."""
        self.work(self.receive())

    def receive(self) -> list[bytes]:
        """Wait for one message."""
        return self.input.recv_multipart()

    def work(self, message: list[bytes]) -> None:
        """Work one message off."""
        writer, frame = message
        if writer == FRONT:
            self._take_command(frame)
        else:
            self._take_event(frame)

    # --- towards the engine

    def _take_command(self, frame: bytes) -> None:
        command = self._codec.command(frame)
        if type(command) is Request:
            self._take_request(command, frame)
            return
        if type(command) is Abort:
            self._drop_waiting(command)
        self._core.send(frame)

    def _take_request(self, request: Request, frame: bytes) -> None:
        key = request.client, request.id
        before = self._open.get(key)
        if before is not None and before.ended:
            before.next = request, frame
            return
        if before is None and self._detokenize:
            self._open[key] = Text(request)
        self._core.send(frame)

    def _drop_waiting(self, abort: Abort) -> None:
        """Those that the engine has not got yet are aborted here."""
        found = [id for id in abort.ids or () if (text := self._open.get((abort.client, id))) is not None and text.next is not None]
        for id in found:
            self._open[abort.client, id].next = None
        if found:
            self._front.send(self._codec.encode(Step([Delta(id, [], "abort") for id in found], abort.client)))

    # --- towards the front

    def _take_event(self, frame: bytes) -> None:
        event = self._codec.event(frame)
        if type(event) is Step:
            self._take_step(event)
            return
        if type(event) is Model:
            self._current.take(event.info)
        self._front.send(frame)

    def _take_step(self, step: Step) -> None:
        deltas = [delta for delta in step.deltas if self._fill(delta, step.client)]
        ended = [delta.id for delta in deltas if (text := self._open.get((step.client, delta.id))) is not None and text.ended]
        if ended:
            self._core.send(self._codec.encode(Abort(tuple(ended), step.client)))
        if deltas:
            self._front.send(self._codec.encode(Step(deltas, step.client)))

    def _fill(self, delta: Delta, client: int) -> bool:
        """Whether the front shall have it: what comes after a stop string it shall not."""
        key = client, delta.id
        text = self._open.get(key)
        if text is None:
            return True
        late, last = text.ended, delta.finish is not None
        if not late:
            text.fill(delta, self._current)
        if last:
            del self._open[key]
            if text.next is not None:
                self._take_request(*text.next)
        return not late


def run_detokenizer(reporter: Reporter, run_dir: Path, *, wiring: Wiring, detokenize: bool, addresses: Addresses) -> None:
    """The detokenizer process: bind, learn what the engine is, serve."""
    sockets = sync_sockets(wiring.engine_socket.build)
    detokenizer = ChainDetokenizer(sockets, wiring.build_codec(), addresses, detokenize=detokenize)
    detokenizer.meet_engine()
    reporter.ready()
    work_off(detokenizer.input, detokenizer.receive, detokenizer.work, page_of(run_dir, DETOKENIZER), wiring.timing.idle_interval)
