"""The detokenizer of the chain, message by message, between a front and an engine that are played here."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import zmq

from mqlab.text.tokenizer import Tokenizer
from mqlab.topologies.chain_detokenizer import ChainDetokenizer
from mqlab.topologies.detok_chain import ENGINE, FRONT, Addresses
from mqlab.types import Abort, Call, Delta, Model, ModelInfo, Reply, Request, SamplingParams, Step
from mqlab.wire.codecs import make_codec
from mqlab.wire.sockets import sync_sockets

CODEC = make_codec("msgpack")
WAIT_MS = 5000


class Chain:
    """All three, in this thread: nothing is worked off before ``take``."""

    def __init__(self, folder: Path, model: Path) -> None:
        addresses = Addresses(*(f"ipc://{folder}/{name}" for name in ("to", "core", "from")))
        self.sockets = sync_sockets()
        self.front_in = self.sockets.bind("pull", addresses.from_detokenizer)
        self.engine_in = self.sockets.bind("pull", addresses.to_engine_core)
        self.detokenizer = ChainDetokenizer(self.sockets, CODEC, addresses)
        self.writers = {writer: self.sockets.connect("push", addresses.to_detokenizer) for writer in (FRONT, ENGINE)}
        self.tokenizer = Tokenizer.load(model)
        info = ModelInfo(name="played", path=str(model), vocab_size=9, max_model_len=9, max_prompt_len=9)
        self.post(ENGINE, Model(info))
        self.detokenizer.meet_engine()
        assert CODEC.event(self.receive(self.front_in)) == Model(info)

    def post(self, writer: bytes, *messages: Any) -> list[bytes]:
        """Send; returns the bytes of each."""
        frames = [CODEC.encode(message) for message in messages]
        for frame in frames:
            self.writers[writer].send_multipart([writer, frame])
        return frames

    def tell(self, writer: bytes, *messages: Any) -> list[bytes]:
        """Send, and let the detokenizer work it off."""
        frames = self.post(writer, *messages)
        for _ in frames:
            self.detokenizer.take()
        return frames

    def receive(self, socket: zmq.Socket[bytes]) -> bytes:
        assert socket.poll(WAIT_MS), "nothing came"
        return socket.recv()

    def at_front(self) -> Any:
        return CODEC.event(self.receive(self.front_in))

    def at_engine(self) -> Any:
        return CODEC.command(self.receive(self.engine_in))

    def ids(self, text: str) -> list[int]:
        return self.tokenizer.encode(text)


@pytest.fixture
def chain(tmp_path: Path, model_folder: Path) -> Iterator[Chain]:
    chain = Chain(tmp_path, model_folder)
    try:
        yield chain
        assert not chain.front_in.poll(0) and not chain.engine_in.poll(0), "nothing else was said"
    finally:
        chain.sockets.close()


def asks(id: str = "a", **params: Any) -> Request:
    return Request(id, [1], SamplingParams(max_tokens=None, **params))


def test_what_the_front_says_goes_on_as_the_same_bytes(chain: Chain) -> None:
    said = chain.tell(FRONT, asks(), Call(1, "stats"), Abort(("a",)))
    assert [chain.receive(chain.engine_in) for _ in said] == said


def test_answers_go_on_as_the_same_bytes(chain: Chain) -> None:
    said = chain.tell(ENGINE, Reply(1, {"steps": 3}))
    assert [chain.receive(chain.front_in)] == said


def test_the_request_is_known_before_its_first_token(chain: Chain) -> None:
    chain.tell(FRONT, asks(stop=("two",)))
    assert chain.at_engine().id == "a"
    ids = chain.ids("one two three")
    chain.tell(ENGINE, Step([Delta("a", ids)]))
    assert chain.at_front() == Step([Delta("a", ids[:2], "stop", "two", text="one ")])
    assert chain.at_engine() == Abort(("a",))
    chain.tell(ENGINE, Step([Delta("a", [5])]), Step([Delta("a", [], "abort")]))


def test_only_those_that_a_stop_string_ended_are_aborted(chain: Chain) -> None:
    chain.tell(FRONT, *(asks(id, stop=(stop,)) for id, stop in (("a", "x"), ("b", "two"), ("c", "two"))))
    assert [chain.at_engine().id for _ in range(3)] == ["a", "b", "c"]
    ids = chain.ids("two")
    chain.tell(ENGINE, Step([Delta("a", ids), Delta("b", ids), Delta("c", ids, "length")]))
    assert [(delta.id, delta.finish) for delta in chain.at_front().deltas] == [("a", None), ("b", "stop"), ("c", "stop")]
    assert chain.at_engine() == Abort(("b",))


def test_an_id_that_is_taken_again_waits_for_the_engine(chain: Chain) -> None:
    chain.tell(FRONT, asks(stop=("two",)))
    chain.tell(ENGINE, Step([Delta("a", chain.ids("two"))]))
    assert (chain.at_engine().id, chain.at_engine()) == ("a", Abort(("a",)))
    assert chain.at_front().deltas[0].finish == "stop"
    (again,) = chain.tell(FRONT, asks(logprobs=1))
    assert not chain.engine_in.poll(0)
    chain.tell(ENGINE, Step([Delta("a", [7])]), Step([Delta("a", [], "abort")]))
    assert chain.receive(chain.engine_in) == again
    chain.tell(ENGINE, Step([Delta("a", [7])]))
    assert chain.at_front() == Step([Delta("a", [7])]), "tokens alone, with logprobs"


def test_what_waits_for_an_id_is_aborted_here(chain: Chain) -> None:
    chain.tell(FRONT, asks(stop=("two",)))
    chain.tell(ENGINE, Step([Delta("a", chain.ids("two"))]))
    chain.tell(FRONT, asks(), Abort(("a",)))
    assert [type(chain.at_engine()) for _ in range(3)] == [Request, Abort, Abort]
    assert [delta.finish for _ in range(2) for delta in chain.at_front().deltas] == ["stop", "abort"]
    chain.tell(ENGINE, Step([Delta("a", [], "abort")]))


def test_clients_do_not_meet(chain: Chain) -> None:
    """One id, two clients: only one of them has a stop string."""
    chain.tell(FRONT, asks(stop=("two",)), Request("a", [1], SamplingParams(max_tokens=None), client=1))
    assert [chain.at_engine().client for _ in range(2)] == [0, 1]
    ids = chain.ids("one two")
    chain.tell(ENGINE, Step([Delta("a", ids)], 1), Step([Delta("a", ids)], 0))
    assert chain.at_front() == Step([Delta("a", ids, text="one two")], 1)
    assert chain.at_front().deltas[0].finish == "stop"
    assert chain.at_engine() == Abort(("a",), 0)
