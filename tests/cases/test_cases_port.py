"""The port: whose it is, how soon that is told, and that it is free as soon as its server is gone (C22).

That it is free again after a kill is in test_cases_kill.py.
"""

from __future__ import annotations

import os
import socket
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest
from serving import Process, echo_command, mqlab_command, running


def refused(folder: Path, port: int, *arguments: str) -> str:
    """What a ``serve`` on a taken port says; it must not have come to looking for its model, which does not exist."""
    with running(mqlab_command("serve", "/no/such/model", "--port", str(port), *arguments), folder) as process:
        assert process.popen.wait(20) == 1
        return process.text()


def port_of(process: Process) -> int:
    return int(process.url.rpartition(":")[2])


@pytest.mark.parametrize("arguments", [[], ["--topology", "inproc"], ["--host", "0.0.0.0"], ["--host", "localhost"]], ids=" ".join)
def test_a_taken_port_is_told_with_its_holder(tmp_path: Path, arguments: list[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as holder:
        port = holder.getsockname()[1]
        message = refused(tmp_path, port, *arguments)
    assert message.startswith(f"mqlab: port {port} on ")
    assert f"is taken by process {os.getpid()}" in message
    assert "--port 0" in message
    assert "/no/such/model" not in message


def test_a_second_server_on_the_same_port_does_not_disturb_the_first(model_folder: Path, tmp_path: Path) -> None:
    with running(echo_command(model_folder), tmp_path) as first:
        port = port_of(first.wait_ready())
        assert f"is taken by process {first.popen.pid}" in refused(tmp_path, port)
        assert httpx.get(f"{first.url}/health").status_code == 200
        assert first.stop(10) == 0
    with running(echo_command(model_folder, port=port), tmp_path) as again:
        assert port_of(again.wait_ready()) == port
        assert again.stop(10) == 0


def test_two_servers_that_want_the_same_port_at_once(model_folder: Path, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    with ExitStack() as stack:
        both = [stack.enter_context(running(echo_command(model_folder, port=port), tmp_path)) for _ in range(2)]
        with pytest.raises(AssertionError):
            for process in both:
                process.wait_ready()
        (loser,) = [process for process in both if process.popen.poll() is not None]
        (winner,) = [process for process in both if process is not loser]
        assert f"port {port} on 127.0.0.1 is taken" in loser.text()
        assert port_of(winner.wait_ready()) == port
        assert httpx.get(f"{winner.url}/health").status_code == 200
        assert winner.stop(10) == 0


def test_three_servers_at_once_on_port_zero_tell_ports_that_work(model_folder: Path, tmp_path: Path) -> None:
    with ExitStack() as stack:
        servers = [stack.enter_context(running(echo_command(model_folder, name=f"echo{i}"), tmp_path)) for i in range(3)]
        ports = [port_of(server.wait_ready()) for server in servers]
        names = [httpx.get(f"{server.url}/v1/models").json()["data"][0]["id"] for server in servers]
        assert len(set(ports)) == 3
        assert names == ["echo0", "echo1", "echo2"]
        assert [server.stop(10) for server in servers] == [0, 0, 0]
