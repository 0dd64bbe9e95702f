"""--uds: a server on a unix socket, whose file is there as long as the server is; and what a server's keys are written into: nothing."""

from __future__ import annotations

import asyncio
import shutil
import socket
import subprocess
from pathlib import Path
from typing import Any

import httpx
import pytest
from serving import echo_command, running, serving

from mqlab.arguments import serve_line
from mqlab.config import EngineConfig, ServerConfig, Timing, environment_of_server
from mqlab.errors import ConfigError
from mqlab.probes.running import metrics_of, table
from mqlab.server.http.access import without_secrets
from mqlab.server.http.listener import listening
from mqlab.wire.registry import Registry

KEY = "sk-never-written-down"
CALL = {"prompt": "Hello", "max_tokens": 3}


def on(path: Path) -> httpx.Client:
    return httpx.Client(transport=httpx.HTTPTransport(uds=str(path)), base_url="http://server", headers={"authorization": f"Bearer {KEY}"})


@pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")
async def test_curl_finds_it(model_folder: Path, runtime_dir: Path) -> None:
    path = runtime_dir / "curl.sock"
    async with serving(model_folder, server={"uds": str(path)}) as served:
        assert served.url == f"unix:{path}"
        command = ["curl", "-sN", "--unix-socket", str(path), "http://server/v1/completions", "-H", "content-type: application/json"]
        asked = await _said(*command, "-d", '{"prompt": "Hello", "max_tokens": 2, "stream": true}')
    assert asked.rstrip().endswith("data: [DONE]") and '"text":"Hello"' in asked
    assert not path.exists()


async def _said(*command: str) -> str:
    process = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE)
    return (await process.communicate())[0].decode()


def test_a_server_on_a_path_is_listed_and_its_keys_are_written_nowhere(
    model_folder: Path, runtime_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, cache = runtime_dir / "server.sock", tmp_path / "cache"
    monkeypatch.setenv("MQLAB_API_KEY", f"{KEY}, other")
    monkeypatch.setenv("MQLAB_CACHE", str(cache))
    settings: dict[str, Any] = {"uds": str(path), "enable_control": True, "host": "0.0.0.0"}
    with running(echo_command(model_folder, settings=settings), tmp_path) as process:
        process.wait_ready()
        assert process.url == f"unix:{path}"
        (entry,) = Registry().entries()
        assert str(path) in table([entry])
        assert "mqlab:" in metrics_of(entry)
        with on(path) as client:
            assert client.post("/v1/completions", json=CALL).json()["choices"][0]["text"] == "HelloHelloHello"
            assert client.post("/v1/completions", json=CALL, headers={"authorization": "Bearer x"}).status_code == 401
            assert client.post("/reset_prefix_cache").status_code == 200
        written = b"".join(file.read_bytes() for file in cache.rglob("*") if file.is_file())
        assert b"enable_control" in written, "the settings are written down"
        for place in (written, process.output.read_bytes(), repr(entry).encode()):
            assert KEY.encode() not in place
        assert process.stop(10) == 0
    assert not path.exists()


def test_a_killed_servers_file_is_replaced_and_a_live_ones_is_not(tmp_path: Path, runtime_dir: Path) -> None:
    config = ServerConfig(uds=str(runtime_dir / "s.sock"))
    with socket.socket(socket.AF_UNIX) as killed:
        killed.bind(str(config.uds))
    with listening(config), pytest.raises(ConfigError, match="a server listens there already"), listening(config):
        pass
    assert not Path(str(config.uds)).exists()


def test_a_later_servers_file_stays(runtime_dir: Path) -> None:
    path = runtime_dir / "s.sock"
    with listening(ServerConfig(uds=str(path))):
        path.unlink()
        with socket.socket(socket.AF_UNIX) as later:
            later.bind(str(path))
    assert path.exists()
    path.unlink()


@pytest.mark.parametrize(
    ("name", "words"), [("file", "is a file and no socket"), ("none/s", "No such file"), ("x" * 120, "under 107 bytes")]
)
def test_a_path_that_cannot_be_used_names_the_remedy(tmp_path: Path, name: str, words: str) -> None:
    (tmp_path / "file").write_text("precious")
    with pytest.raises(ConfigError, match=words), listening(ServerConfig(uds=str(tmp_path / name))):
        pass
    assert (tmp_path / "file").read_text() == "precious"


def test_keys_are_in_no_text_about_the_settings() -> None:
    server = ServerConfig(api_key=(KEY,))
    assert KEY not in repr(server) and KEY not in str(without_secrets(server))
    assert KEY not in str(serve_line(EngineConfig(), server, Timing())), "which everybody sees"
    assert environment_of_server(server.api_key)["MQLAB_API_KEY"] == KEY, "as a detached server gets it"
    wrong: list[Any] = [("two words",), ("a,b",), ("",), ("schlüssel",), KEY, (1,)]
    for keys in wrong:
        with pytest.raises(ConfigError, match="--api-key=… ") as caught:
            ServerConfig(api_key=keys)
        assert not any(str(key) in str(caught.value).partition("…")[2] for key in keys if len(str(key)) > 3)


@pytest.mark.parametrize("host", ["0.0.0.0", "::"])
def test_control_routes_are_not_opened_to_strangers(host: str) -> None:
    with (
        pytest.raises(ConfigError, match=r"--enable-control .*MQLAB_API_KEY"),
        listening(ServerConfig(host=host, port=0, enable_control=True)),
    ):
        pass
    for settings in ({"api_key": (KEY,)}, {"host": "127.0.0.1"}, {"host": "localhost"}, {"enable_control": False}):
        with listening(ServerConfig(**{"host": host, "port": 0, "enable_control": True, **settings})):
            pass
