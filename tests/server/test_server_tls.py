"""https with a certificate of one's own; one that cannot be used is told before anything starts."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path

import httpx
import pytest
from openai import AsyncOpenAI
from serving import FAST, echo_wiring, serving

from mqlab.config import EngineConfig, ServerConfig
from mqlab.errors import ConfigError
from mqlab.server.http.tls import tls_context
from mqlab.server.launch import serve

CERTIFICATE = Path(__file__).parents[1] / "helpers" / "certificate" / "localhost.pem"
KEY = CERTIFICATE.with_suffix(".key")
SECURE = {"ssl_certfile": str(CERTIFICATE), "ssl_keyfile": str(KEY)}
TRUST = ssl.create_default_context(cafile=str(CERTIFICATE))


async def test_clients_that_trust_the_certificate_are_served(model_folder: Path) -> None:
    async with serving(model_folder, "v1", server=SECURE) as served:
        assert served.url.startswith("https://127.0.0.1:")
        async with (
            httpx.AsyncClient(verify=TRUST) as http,
            AsyncOpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=0, http_client=http) as client,
        ):
            whole = await client.completions.create(model="echo", prompt="Hello", max_tokens=3)
            assert whole.choices[0].text == "HelloHelloHello"
            stream = await client.completions.create(model="echo", prompt="Hello", max_tokens=300, stream=True)
            assert "".join([chunk.choices[0].text async for chunk in stream if chunk.choices]) == "Hello" * 300
        async with httpx.AsyncClient() as stranger:
            with pytest.raises(httpx.ConnectError, match="certificate verify failed"):
                await stranger.get(served.url)


async def test_who_speaks_no_tls_or_says_nothing_holds_up_nobody(model_folder: Path) -> None:
    async with serving(model_folder, server=SECURE) as served:
        host, port = served.url.removeprefix("https://").split(":")
        reader, plain = await asyncio.open_connection(host, int(port))
        ended, silent = await asyncio.open_connection(host, int(port))
        plain.write(b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n")
        async with asyncio.timeout(5):
            assert not (await reader.read()).startswith(b"HTTP"), "the handshake failed"
        async with httpx.AsyncClient(verify=TRUST) as client:
            assert (await client.get(f"{served.url}/health")).status_code == 200
        plain.close()
    async with asyncio.timeout(5):  # the end of the server is the silent one's, too
        assert await ended.read() == b""
    silent.close()


def test_a_certificate_that_cannot_be_used_is_told_at_once(tmp_path: Path) -> None:
    broken = tmp_path / "broken.pem"
    broken.write_text("no certificate")
    wrong = [
        (tmp_path / "none.pem", KEY, "No such file"),
        (broken, KEY, "cannot be used"),
        (CERTIFICATE, CERTIFICATE.with_name("other.key"), "MISMATCH"),
        (CERTIFICATE, CERTIFICATE.with_name("encrypted.key"), "the key unencrypted"),
    ]
    for certificate, key, words in wrong:
        with pytest.raises(ConfigError, match=words):
            serve(
                EngineConfig(),
                ServerConfig(port=0, ssl_certfile=str(certificate), ssl_keyfile=str(key)),
                FAST,
                wiring=echo_wiring(tmp_path),
            )
    with pytest.raises(ConfigError, match="needs --ssl-keyfile"):
        ServerConfig(ssl_certfile=str(CERTIFICATE))
    with pytest.raises(ConfigError, match="needs --ssl-certfile"):
        ServerConfig(ssl_keyfile=str(KEY))
    assert tls_context(ServerConfig()) is None
