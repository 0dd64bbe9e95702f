"""Metered sockets: every message, byte and frame counted, in both directions, and nothing else changed."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import zmq
import zmq.asyncio

from mqlab.contract.waiting import until_sync
from mqlab.probes.recording import Recording
from mqlab.record.events import EventLog, read_events
from mqlab.wire.sockets import SocketSet, async_sockets, sync_sockets
from mqlab.wire.spec import Spec
from mqlab.wire.wiring import Wiring

PLAIN = Wiring(Spec("mqlab.engine.echo:build"))


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[SocketSet[zmq.Socket[bytes]]]:
    sockets = sync_sockets(PLAIN.recorded(tmp_path).engine_socket.build)
    yield sockets
    sockets.close()


@pytest.fixture
async def front(tmp_path: Path) -> Any:
    sockets = async_sockets(PLAIN.recorded(tmp_path).front_socket.build)
    yield sockets
    sockets.close()


def pages(folder: Path) -> list[dict[str, int]]:
    """The counters of every writer, the front's first."""
    recording = Recording(folder)
    found = list(recording.read().values())
    recording.close()
    return found[::-1]


def counters(folder: Path) -> dict[str, int]:
    (page,) = pages(folder)
    return page


def figures(folder: Path, edge: str, *names: str) -> list[int]:
    return [counters(folder)[f"socket.{edge}.{name}"] for name in names]


def pair(tmp_path: Path, sockets: SocketSet[Any], edge: str = "output") -> tuple[Any, Any]:
    address = f"ipc://{tmp_path}/{edge}"
    return sockets.bind("push", address), sockets.connect("pull", address)


def test_messages_both_ways(tmp_path: Path, engine: SocketSet[Any]) -> None:
    push, pull = pair(tmp_path, engine)
    for size in (1, 10, 100):
        push.send(b"x" * size)
        assert pull.recv() == b"x" * size
    for direction in ("sent", "received"):
        assert figures(tmp_path, "output", f"{direction}.messages", f"{direction}.bytes", f"{direction}.frames") == [3, 111, 3]
    assert counters(tmp_path)["socket.output.sent.ns"] > 0


def test_the_events_are_the_messages(tmp_path: Path, engine: SocketSet[Any]) -> None:
    push, pull = pair(tmp_path, engine)
    for size in range(1, 6):
        push.send(b"x" * size)
        pull.recv()
    (sent,) = tmp_path.glob("engine-*.message.output.sent.events")
    rows = read_events(sent).rows
    assert rows[:, 1:4].tolist() == [[i, 1, i + 1] for i in range(5)]
    assert (rows[:, 0] > 0).all() and rows[:, 4].sum() == counters(tmp_path)["socket.output.sent.ns"]
    (received,) = tmp_path.glob("engine-*.message.output.received.events")
    assert (read_events(received).rows[:, 0] > rows[:, 0]).all(), "a message is received after it is sent"


async def test_a_multipart_message_is_one(tmp_path: Path, engine: SocketSet[Any], front: SocketSet[Any]) -> None:
    address = f"ipc://{tmp_path}/input"
    router, dealer = front.bind("router", address), engine.connect("dealer", address, identity=b"me")
    dealer.send_multipart([b"he", b"llo"])
    assert await router.recv_multipart() == [b"me", b"he", b"llo"]
    await router.send_multipart([b"me", b"one", b"two"])
    assert dealer.recv_multipart() == [b"one", b"two"]
    await router.send_multipart([b"me", b"three"])
    assert dealer.recv() == b"three"
    front_page, engine_page = pages(tmp_path)
    names = [f"socket.input.{direction}.{figure}" for direction in ("sent", "received") for figure in ("messages", "bytes", "frames")]
    assert [front_page[name] for name in names] == [2, 15, 5, 1, 7, 3]
    assert [engine_page[name] for name in names] == [1, 5, 2, 2, 11, 3]


async def test_async_sockets_count_what_goes_through(tmp_path: Path, engine: SocketSet[Any], front: SocketSet[Any]) -> None:
    """A message that waits for room is counted when it is sent, and the refusal before that as EAGAIN."""
    address = f"ipc://{tmp_path}/output"
    push = front.bind("push", address)
    futures = [push.send(b"x" * 10) for _ in range(5)]
    (front_page,) = pages(tmp_path)
    assert (front_page["socket.output.sent.messages"], front_page["socket.output.sent.eagain"]) == (0, 1)
    assert not any(future.done() for future in futures)
    pull = engine.connect("pull", address)
    for future in futures:
        await future
    assert [pull.recv() for _ in range(5)] == [b"x" * 10] * 5
    front_page, engine_page = pages(tmp_path)
    assert (front_page["socket.output.sent.messages"], front_page["socket.output.sent.eagain"]) == (5, 1)
    assert engine_page["socket.output.received.messages"] == 5


async def test_async_sockets_receive_and_poll(tmp_path: Path, engine: SocketSet[Any], front: SocketSet[Any]) -> None:
    address = f"ipc://{tmp_path}/output"
    push, pull = engine.bind("push", address), front.connect("pull", address)
    coming = pull.recv()
    push.send(b"first")
    assert await coming == b"first"
    push.send(b"second")
    assert await pull.poll(5000)
    assert await pull.recv() == b"second"
    front_page, _ = pages(tmp_path)
    assert (front_page["socket.output.received.messages"], front_page["socket.output.received.bytes"]) == (2, 11)


def test_nothing_there_is_eagain_and_no_time(tmp_path: Path, engine: SocketSet[Any]) -> None:
    push, pull = pair(tmp_path, engine)
    assert not pull.poll(0)
    with pytest.raises(zmq.Again):
        pull.recv(zmq.DONTWAIT)
    push.send(b"x")
    assert pull.poll(5000)
    assert pull.recv(zmq.DONTWAIT) == b"x"
    assert figures(tmp_path, "output", "received.messages", "received.eagain") == [1, 1]


def test_a_receive_that_waits_counts_the_message_but_not_the_wait(tmp_path: Path, engine: SocketSet[Any]) -> None:
    push, pull = pair(tmp_path, engine)

    def feed() -> None:
        until_sync(lambda: waits)
        push.send(b"late")

    waits: list[int] = []
    thread = threading.Thread(target=feed)
    thread.start()
    waits.append(1)
    assert pull.recv() == b"late"
    thread.join()
    (path,) = tmp_path.glob("*.message.output.received.events")
    ((_, seq, frames, size, _),) = read_events(path).rows.tolist()
    assert (seq, frames, size) == (0, 1, 4)


def test_a_full_pipe_blocks_as_a_plain_one_and_is_counted(tmp_path: Path, engine: SocketSet[Any]) -> None:
    push = engine.bind("push", f"ipc://{tmp_path}/output")  # nobody connects: there is never room
    push.set(zmq.SNDTIMEO, 10)
    with pytest.raises(zmq.Again):
        push.send(b"x")
    with pytest.raises(zmq.Again):
        push.send(b"x", zmq.DONTWAIT)
    engine.connect("pull", f"ipc://{tmp_path}/output").poll(0)
    push.set(zmq.SNDTIMEO, 5000)
    push.send(b"y")
    assert figures(tmp_path, "output", "sent.messages", "sent.eagain")[0] == 1
    assert figures(tmp_path, "output", "sent.eagain")[0] >= 2


def test_cost_is_events_times_the_calibrated(tmp_path: Path, engine: SocketSet[Any]) -> None:
    push, _ = pair(tmp_path, engine)
    push.send(b"x")
    (page,) = pages(tmp_path)
    one = page["probe.socket.output.sent.ns"]
    for _ in range(9):
        push.send(b"x")
    (page,) = pages(tmp_path)
    assert one > 0 and page["probe.socket.output.sent.ns"] == 10 * one
    assert (page["probe.socket.output.sent.events"], page["probe.socket.output.sent.dropped"]) == (10, 0)


def test_a_meter_that_fails_is_dropped_and_said_once(
    tmp_path: Path, engine: SocketSet[Any], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*args: int) -> None:
        raise OSError(28, "No space left on device")

    push, pull = pair(tmp_path, engine)
    push.send(b"1")
    monkeypatch.setattr(EventLog, "append", full)
    for text in (b"2", b"3"):
        push.send(text)
    assert [pull.recv() for _ in range(3)] == [b"1", b"2", b"3"]
    assert [record.message.partition(":")[0] for record in caplog.records if record.name == "mqlab.probes"] == [
        "the probe socket.output.sent is dropped",
        "the probe socket.output.received is dropped",
    ]


def test_a_folder_that_cannot_be_made_leaves_plain_sockets(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("")
    wiring = PLAIN.recorded(tmp_path / "file" / "folder")
    with caplog.at_level(logging.WARNING, "mqlab.probes"):
        assert wiring.engine_socket.build("input") is zmq.Socket
        assert wiring.front_socket.build("input") is zmq.asyncio.Socket
    assert all("sockets is dropped" in record.message for record in caplog.records)


def test_unrecorded_sockets_are_plain() -> None:
    sockets = sync_sockets(PLAIN.engine_socket.build)
    assert type(sockets.bind("pull", "inproc://input")) is zmq.Socket
    sockets.close()


def test_closed_sockets_leave_whole_files(tmp_path: Path) -> None:
    sockets = sync_sockets(PLAIN.recorded(tmp_path).engine_socket.build)
    push, pull = pair(tmp_path, sockets)
    push.send(b"x")
    pull.recv()
    sockets.close()
    assert [len(read_events(path).rows) for path in tmp_path.glob("*.message.*.events")] == [1, 1]
