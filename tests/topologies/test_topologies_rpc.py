"""What only the layouts with a socket per call have: what their sockets cost, where they end, what they lose."""

from __future__ import annotations

import asyncio
import json
import math
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import psutil
import pytest
import zmq
import zmq.asyncio

from mqlab.client.base import BaseClient
from mqlab.contract.rig import Rig, ask, assert_serves, begin, echo_of, held, outcome, outcomes, read, run, settled
from mqlab.contract.waiting import until, until_sync
from mqlab.errors import CallError, ConfigError, EngineDeadError, Overloaded
from mqlab.probes.recording import Recording
from mqlab.record.trace import Trace
from mqlab.topologies import TOPOLOGIES, make_client
from mqlab.types import SamplingParams

SHORT = SamplingParams(max_tokens=3)
SLOW = {"device_time": 0.005, "max_num_seqs": 10_000}
CALLS = {"rpc": "rpc", "rpc_proxy": "calls"}
"""The edge that has a socket for each request, abort and call."""

T = TypeVar("T")
FIXED = [name for name in ("mq", "v1", "detok_chain", "detok_ring") if name in TOPOLOGIES]


def rig(topology: str, **options: Any) -> Rig:
    return Rig(topology, partial(make_client, topology, **options))


async def at_rest(look: Callable[[], T]) -> T:
    """What is seen again and again; sockets are given back, and messages arrive, behind the scenes."""
    seen: list[T] = []

    def same() -> bool:
        seen.append(look())
        return len(seen) > 15 and all(one == seen[-1] for one in seen[-15:])

    await until(same, timeout=20)
    return seen[-1]


def counted(folder: Path, name: str) -> int:
    """A counter of the front's."""
    recording = Recording(folder)
    try:
        return sum(page[name] for writer, page in recording.read().items() if writer.startswith("front"))
    finally:
        recording.close()


# --- where the sockets end


def mailboxes() -> int:
    """Of this process's sockets: each has an eventfd, which goes when the library's own thread has given the socket's place back."""
    return [target for _, target in held().fds].count("anon_inode:[eventfd]")


def mailboxes_of_a_context() -> int:
    """That it has for itself, beside its sockets."""
    before = mailboxes()
    with zmq.Context() as context, context.socket(zmq.DEALER):
        return mailboxes() - before - 1


@asynccontextmanager
async def limited(limit: int) -> AsyncIterator[BaseClient]:
    """A client that may have so many sockets, and has none: that of its handshake, closed, keeps its place for a moment longer."""
    idle = mailboxes() + mailboxes_of_a_context()
    async with rig("rpc", max_sockets=limit).client(echo=SLOW) as client:
        await until(lambda: mailboxes() == idle)
        yield client


@pytest.mark.parametrize(("limit", "more"), [(40, 10), pytest.param(1023, 77, marks=pytest.mark.full)])
async def test_requests_beyond_max_sockets_fail_and_say_so(limit: int, more: int) -> None:
    """Issue 7653: the 1,024th request. The others do not notice."""
    async with limited(limit) as client:
        params = SamplingParams(max_tokens=20)
        answers = await outcomes([run(client, ask(f"r{i}", params=params)) for i in range(limit + more)], timeout=60)
        assert answers[:limit] == [(echo_of(ask(""), 20), "length")] * limit, "at the limit all is well"
        for error in answers[limit:]:
            assert isinstance(error, Overloaded) and isinstance(error.__cause__, zmq.ZMQError)
            assert "Too many open files" in str(error) and f"max_sockets={limit}" in str(error)
        await assert_serves(client)
        assert (await settled(client)).finished["length"] == limit + 1


async def test_at_the_limit_a_call_fails_and_an_abort_does_not() -> None:
    async with limited(5) as client:
        streams = [await begin(client, ask(f"r{i}")) for i in range(5)]
        error = await outcome(client.call("ping"))
        assert isinstance(error, CallError) and "max_sockets=5" in str(error)
        await client.abort(["r0"])
        assert (await outcome(read(streams[0])))[1] == "abort"
        for stream in streams[1:]:
            await stream.aclose()
        await until(lambda: client.glance().running == 0)
        assert (await settled(client)).finished["abort"] == 5
        await assert_serves(client)


FEW_FILES = """
import asyncio, json, resource, sys
from mqlab.topologies import make_client
from mqlab.contract.rig import Rig, ask, assert_serves, outcomes, run
from mqlab.types import SamplingParams
from functools import partial
topology, files, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))
options = {"max_sockets": 65535} if topology.startswith("rpc") else {}
rig = Rig(topology, partial(make_client, topology, **options))
async def main():
    async with rig.client(echo={"device_time": 0.005, "max_num_seqs": 10_000}) as client:
        requests = [ask(f"r{i}", params=SamplingParams(max_tokens=20)) for i in range(count)]
        answers = await outcomes([run(client, request) for request in requests], timeout=60)
        await assert_serves(client)
        print(json.dumps([str(answer) if isinstance(answer, Exception) else "ok" for answer in answers]))
asyncio.run(main())
"""


def with_few_files(topology: str, files: int, count: int) -> list[str]:
    """How each of so many requests ended in a process that may open so many files."""
    command = [sys.executable, "-c", FEW_FILES, topology, str(files), str(count)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


FILES = [(128, 150), pytest.param(1024, 1100, marks=pytest.mark.full)]


@pytest.mark.parametrize(("files", "count"), FILES)
@pytest.mark.parametrize("topology", ["rpc", "rpc_proxy"])
def test_with_enough_sockets_the_file_limit_is_the_limit(topology: str, files: int, count: int) -> None:
    """Issue 7920: a proxy does not help, for a socket inside the process costs a file as well; but one only, not two."""
    answers = with_few_files(topology, files, count)
    failed = [answer for answer in answers if answer != "ok"]
    assert failed and all("Too many open files" in answer and f"{files} files" in answer and "ulimit -n" in answer for answer in failed)
    assert Counter(answers)["ok"] > files // 4, "those that had a socket have their tokens"


@pytest.mark.parametrize(("files", "count"), FILES)
def test_a_layout_of_few_sockets_does_not_know_the_file_limit(files: int, count: int) -> None:
    assert with_few_files("v1", files, count) == ["ok"] * count


def test_the_socket_limit_of_the_library_cannot_be_set() -> None:
    """The seed: ``ctx.set(zmq.SOCKET_LIMIT, 10000000)``, and it is still 65,535."""
    with zmq.Context() as context:
        context.set(zmq.SOCKET_LIMIT, 10_000_000)
        assert context.get(zmq.SOCKET_LIMIT) == 65_535
        assert context.get(zmq.MAX_SOCKETS) == 1023


async def test_more_sockets_than_the_library_has_are_refused() -> None:
    error = await outcome(rig("rpc", max_sockets=65_536).client().start())
    assert isinstance(error, ConfigError) and "max_sockets=65536" in str(error) and "65535" in str(error)


# --- what a stream costs


def files() -> int:
    return psutil.Process().num_fds()


async def fds_by_streams(client: BaseClient, counts: list[int]) -> list[tuple[int, int]]:
    """Open files of the front and of the engine with so many streams open."""
    engine, found, streams = psutil.Process(client.info.pid), [], []

    def held() -> tuple[int, int]:
        return files(), engine.num_fds()

    for count in counts:
        streams += await asyncio.gather(*(begin(client, ask(f"r{i}")) for i in range(len(streams), count)))
        found.append(await at_rest(held))
    for stream in streams:
        await stream.aclose()
    await settled(client, timeout=60)
    return found


@pytest.mark.parametrize(("topology", "front", "engine"), [("rpc", 2, 1), ("rpc_proxy", 1, 0)])
@pytest.mark.parametrize("streams", [50, pytest.param(1000, marks=pytest.mark.full)])
async def test_files_grow_with_streams(topology: str, front: int, engine: int, streams: int) -> None:
    async with rig(topology).client(echo=SLOW) as client:
        (front_0, engine_0), (front_n, engine_n) = await fds_by_streams(client, [1, 1 + streams])
        assert (front_n - front_0, engine_n - engine_0) == (front * streams, engine * streams)
        assert await at_rest(files) <= front_0, "and shrink with them"


@pytest.mark.parametrize("topology", FIXED)
@pytest.mark.parametrize("streams", [200, pytest.param(5000, marks=pytest.mark.full)])
async def test_layouts_of_few_sockets_hold_the_same_files_for_any_number_of_streams(topology: str, streams: int) -> None:
    async with rig(topology).client(echo=SLOW) as client:
        one, many = await fds_by_streams(client, [1, streams])
        assert one == many


@pytest.mark.parametrize("topology", ["rpc", "rpc_proxy"])
async def test_an_abort_costs_one_more_socket(topology: str, tmp_path: Path) -> None:
    def opened() -> int:
        return counted(tmp_path, f"socket.{CALLS[topology]}.sent.sockets")

    async with make_client(topology, rig(topology).wiring(echo=SLOW).recorded(tmp_path)) as client:
        before = opened()
        streams = [await begin(client, ask(f"r{i}")) for i in range(7)]
        assert opened() - before == 7
        await streams[0].aclose()
        await client.abort(["r1", "r2"])
        assert opened() - before == 9, "one for each abort, whatever it aborts"
        await client.abort(f"r{i}" for i in range(3, 7))
        await settled(client)
    rows = [row for row in Trace.of(tmp_path).edges().to_dict("records") if row["edge"] == CALLS[topology]]
    assert rows and all(math.isnan(row["transit_p50_us"]) for row in rows), "messages of several sockets do not match by number"


@pytest.mark.parametrize("topology", ["rpc", "rpc_proxy"])
async def test_a_close_right_behind_many_aborts_is_quiet(topology: str) -> None:
    """Answers to them are on their way to sockets that the close takes away."""
    errors: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: errors.append(context))
    async with rig(topology).client(echo=SLOW) as client:
        tasks = [asyncio.create_task(run(client, ask(f"r{i}"))) for i in range(200)]
        await until(lambda: client.glance().running == 200)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    assert errors == []


# --- what a high-water mark loses


@pytest.mark.parametrize(("hwm", "lossless"), [(1000, False), (0, True)])
def test_a_router_drops_what_a_peer_does_not_read(hwm: int, lossless: bool, tmp_path: Path) -> None:
    """Without an error: 5,000 messages of 2 kB to a peer that reads only afterwards."""
    address, sent = f"ipc://{tmp_path / 'r'}", 5000
    with zmq.Context() as context, context.socket(zmq.ROUTER) as router, context.socket(zmq.DEALER) as dealer:
        for socket in (router, dealer):
            socket.set_hwm(hwm)
            socket.set(zmq.LINGER, 0)
        router.bind(address)
        dealer.connect(address)
        dealer.send(b"hello")
        peer, _ = router.recv_multipart()
        for _ in range(sent):
            router.send_multipart([peer, bytes(2000)])
        received = 0
        while dealer.poll(200 if received < sent else 0):
            dealer.recv()
            received += 1
    assert (received == sent) == lossless and received >= 1000


def lost_in(folder: Path, edge: str) -> int:
    """Messages to the front that a recording says were lost on an edge."""
    rows = Trace.of(folder).edges().to_dict("records")
    return sum(row["lost"] for row in rows if row["edge"] == edge and row["receiver"].startswith("front"))


@pytest.mark.parametrize(
    ("topology", "options", "lost"),
    [
        ("rpc", {"preset": "historical"}, range(1000, 6000)),
        ("rpc", {}, range(1)),
        ("rpc_proxy", {"hwm": 1000}, range(1, 6000)),  # few: its engine's DEALER waits, so that tokens are merged before they are sent
        ("rpc_proxy", {"preset": "historical"}, range(1)),
    ],
)
async def test_a_front_that_stands_still_loses_messages_and_the_counters_tell(
    topology: str, options: dict[str, Any], lost: range, tmp_path: Path
) -> None:
    """A stream of 6,000 tokens goes on while the front's loop does nothing. Its last message is among those that are lost."""
    params = SamplingParams(max_tokens=6000, ignore_eos=True)
    async with make_client(topology, rig(topology).wiring().recorded(tmp_path), **options) as client:
        stream = await begin(client, ask("a", params=params))
        until_sync(lambda: client.glance().running == 0, 30)
        rest = asyncio.create_task(read(stream))
        if 0 in lost:
            assert (await outcome(rest, timeout=30))[1] == "length"
        else:
            await at_rest(lambda: counted(tmp_path, f"socket.{CALLS[topology]}.received.messages"))
            assert not rest.done()
            rest.cancel()
    assert lost_in(tmp_path, CALLS[topology]) in lost


# --- the proxy's own limit


async def test_the_proxy_takes_half_as_many_requests_as_there_are_sockets() -> None:
    with pytest.raises(ConfigError, match="--max-sockets=1999 must be at least 2000"):
        make_client("rpc_proxy", rig("rpc_proxy").wiring(), max_sockets=1999)
    async with rig("rpc_proxy", max_sockets=2000).client() as client:
        assert client.limit == 998
    client = rig("rpc_proxy").client()
    client.limit = 3
    async with client:
        assert client.limit == 3, "a lower one that was asked for stays"
    assert (await _limit_of("rpc_proxy"), await _limit_of("rpc")) == (32_765, None)


async def _limit_of(topology: str) -> int | None:
    async with rig(topology).client() as client:
        return client.limit


@pytest.mark.full
async def test_one_request_more_than_the_proxy_takes_is_refused() -> None:
    async with rig("rpc_proxy", max_sockets=2000).client(echo=SLOW) as client:
        answers = await outcomes([run(client, ask(f"r{i}", params=SamplingParams(max_tokens=20))) for i in range(1000)], timeout=60)
        assert [type(answer) for answer in answers[998:]] == [Overloaded] * 2
        assert {answer[1] for answer in answers[:998]} == {"length"}


async def test_the_first_proxy_carries_a_burst_too() -> None:
    async with rig("rpc_proxy", preset="historical").client() as client:
        requests = [ask(f"r{i}", prompt=(i + 3, 4), params=SHORT) for i in range(300)]
        assert await asyncio.gather(*(run(client, one) for one in requests)) == [(echo_of(one, 3), "length") for one in requests]


class BreakingSocket(zmq.asyncio.Socket):
    """Fails at the tenth message that it is to send."""

    def send_multipart(self, *args: Any, **kwargs: Any) -> Any:
        sent = self.__dict__.setdefault("sent", 0)
        self.__dict__["sent"] = sent + 1
        if sent == 10:
            raise OSError("this socket was told to break")
        return super().send_multipart(*args, **kwargs)


def breaking(edge: str) -> type[zmq.asyncio.Socket]:
    """For ``Wiring.front_socket``: the proxy's own socket towards the front's requests."""
    return BreakingSocket if edge == "calls" else zmq.asyncio.Socket


@pytest.mark.parametrize("proxy", ["one", "two"])
async def test_a_proxy_that_fails_ends_all(proxy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mqlab.wire.sockets.plain_async_class", breaking)
    async with rig("rpc_proxy", proxy=proxy).client(echo=SLOW) as client:
        error = await outcome(read(client.generate(ask("a"))))
        assert isinstance(error, EngineDeadError) and "OSError: this socket was told to break" in error.cause
