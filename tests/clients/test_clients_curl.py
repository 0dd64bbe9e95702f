"""``curl`` as it is typed: bytes of a stream, status codes, a unix socket."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from serving import Process, mqlab_command, running

from mqlab.contract.waiting import until_sync

pytestmark = pytest.mark.skipif(shutil.which("curl") is None, reason="there is no curl on this machine")

JSON = ("--header", "content-type: application/json")
BODY = json.dumps({"model": "echo", "prompt": "one two", "max_tokens": 2, "stream": True})


def curl(*arguments: str) -> str:
    """What it wrote; it must succeed."""
    done = subprocess.run(["curl", "--silent", "--show-error", "--max-time", "20", *arguments], capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode()


def test_a_stream_is_events_each_in_lines_of_their_own(echo: Process) -> None:
    shown = curl("--no-buffer", "--include", f"{echo.url}/v1/completions", *JSON, "--data", BODY)
    head, body = shown.replace("\r\n", "\n").split("\n\n", 1)
    assert head.splitlines()[0] == "HTTP/1.1 200 OK" and "text/event-stream" in head.lower()
    assert body.endswith("data: [DONE]\n\n")
    events = body.removesuffix("data: [DONE]\n\n").split("\n\n")[:-1]
    assert all(event.startswith("data: {") and "\n" not in event for event in events)
    assert "".join(json.loads(event[len("data: ") :])["choices"][0]["text"] for event in events) == "one two"


@pytest.mark.parametrize(
    ("arguments", "status"),
    [
        (["/health"], 200),
        (["/v1/models"], 200),
        (["/metrics"], 200),
        (["/nowhere"], 404),
        (["/v1/completions"], 405),
        (["/v1/completions", *JSON, "--data", "no json"], 400),
        (["/v1/completions", "--data", BODY], 400),  # what curl sends unless told: a form
        (["/v1/completions", *JSON, "--header", "Expect: 100-continue", "--data", '{"prompt": "a", "max_tokens": 1}'], 200),
    ],
)
def test_status_codes(echo: Process, arguments: list[str], status: int) -> None:
    path, *rest = arguments
    assert curl("--output", "/dev/null", "--write-out", "%{http_code}", echo.url + path, *rest) == str(status)


def test_one_connection_carries_one_request_after_the_other(echo: Process) -> None:
    again = [f"{echo.url}/v1/completions", f"{echo.url}/v1/completions"]
    shown = curl("--write-out", "\n%{num_connects}\n", *JSON, "--data", BODY.replace("true", "false"), *again)
    assert shown.splitlines()[1::2] == ["1", "0"]


@contextmanager
def serve_at(socket: Path, folder: Path) -> Iterator[Process]:
    """``mqlab serve`` on a unix socket."""
    with running(mqlab_command("serve", "echo", "--uds", str(socket), "--no-record", "--topology", "aio"), folder) as process:
        until_sync(lambda: "mqlab serving" in process.text() or process.popen.poll() is not None, timeout=60)
        yield process
        assert process.stop(15) == 0


def test_a_unix_socket(model_folder: Path, runtime_dir: Path, tmp_path: Path) -> None:
    socket = runtime_dir / "curl.sock"
    with serve_at(socket, tmp_path):
        answer = curl("--unix-socket", str(socket), "http://anybody/v1/completions", *JSON, "--data", BODY.replace("true", "false"))
        assert json.loads(answer)["choices"][0]["text"] == "one two"
    assert not socket.exists()
