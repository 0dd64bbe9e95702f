"""The probes of a client: its requests, and the event loop that it lives on."""

from __future__ import annotations

from pathlib import Path

from mqlab.client.base import BaseClient
from mqlab.probes.base import attempt
from mqlab.probes.loop import LoopProbe, loop_probe
from mqlab.probes.requests import MeteredStreams, RequestProbe, request_probe
from mqlab.probes.sink import Sink


class FrontProbes:
    """What lives beside a metered client: see Companion."""

    def __init__(self, sink: Sink, requests: RequestProbe, loop: LoopProbe) -> None:
        self._sink = sink
        self._requests = requests
        self._loop = loop

    def start(self) -> None:
        """Begin with the client."""
        self._loop.start()

    def stop(self) -> None:
        """End with it: what still streams ends as it stands, and the files are closed."""
        self._loop.stop()
        self._requests.stop()
        attempt("files", self._sink.close, None)


def watch(client: BaseClient, *, folder: Path, role: str = "front") -> BaseClient:
    """The same client, its requests and its loop metered into a folder; unmetered where that cannot be written."""
    return attempt("requests and loop", lambda: _watch(client, folder, role), client)


def _watch(client: BaseClient, folder: Path, role: str) -> BaseClient:
    sink = Sink.of(folder, role)
    requests = request_probe(sink)
    client.companions.append(FrontProbes(sink, requests, loop_probe(sink, requests.tick)))
    client.streams = MeteredStreams(requests, client.streams.kind)
    return client
