"""Who may use a server: its API keys, which are written down nowhere, and what is refused at start because anybody could use it."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from dataclasses import asdict, replace
from hashlib import sha256
from hmac import compare_digest
from typing import Any

from starlette.types import Scope

from mqlab.config import ServerConfig, Settings, secrets_of
from mqlab.errors import ConfigError
from mqlab.server.errors import ApiError

_CARRIERS = (b"authorization", b"api-key", b"x-api-key")
"""OpenAI's header, and those of the clients of Azure and Anthropic."""


def with_keys(server: ServerConfig) -> ServerConfig:
    """The settings with the keys of the environment, where they name none themselves."""
    return server if server.api_key else replace(server, api_key=Settings.read().api_keys)


def without_secrets(server: ServerConfig) -> dict[str, Any]:
    """The settings as they may be written down."""
    hidden = secrets_of(server)
    return {name: value for name, value in asdict(server).items() if name not in hidden}


def check_control(server: ServerConfig, address: str) -> None:
    """Refuse control routes that somebody on another machine could call without a key.

    Args:
        address: that the server will listen on, as numbers.

    Raises:
        ConfigError: it would be reached from other machines, and has no key.
    """
    if not server.enable_control or server.api_key:
        return
    if not ipaddress.ip_address(address.partition("%")[0]).is_loopback:
        raise ConfigError(
            f"--enable-control on --host={server.host!r} lets anybody who reaches this machine unload the model; "
            "give keys (MQLAB_API_KEY or --api-key), listen on 127.0.0.1 or --uds, or leave the flag out"
        )


class Keys:
    """The keys of a server, as digests: comparing them tells nothing of their length or content.

    Args:
        keys: any of them admits; none at all admit everybody.
    """

    def __init__(self, keys: Iterable[str]) -> None:
        self._digests = [_digest(key.encode()) for key in keys]

    def owner(self, scope: Scope) -> bytes:
        """Who asks: the digest of the key that a request brings, or, where none is needed, of whatever it brings.

        Raises:
            ApiError: 401, a key is needed and the request brings none, or a wrong one.
        """
        given = [_digest(key) for name, value in scope["headers"] if name in _CARRIERS and (key := _key(name, value))]
        if not self._digests:
            return given[0] if given else b""
        # All are compared with all, so that the time taken does not tell which one was right.
        right = [own for own in given for known in self._digests if compare_digest(own, known)]
        if not right:
            raise _unauthorized("the API key is not one of this server's" if given else "an API key is needed")
        return right[0]


def _key(header: bytes, value: bytes) -> bytes:
    """The key in a header, empty where there is none."""
    if header != b"authorization":
        return value.strip()
    scheme, _, key = value.strip().partition(b" ")
    return key.strip() if scheme.lower() == b"bearer" else b""


def _digest(key: bytes) -> bytes:
    return sha256(key).digest()


def _unauthorized(message: str) -> ApiError:
    remedy = "send it as 'Authorization: Bearer KEY'"
    return ApiError(401, f"{message}; {remedy}", code="invalid_api_key", headers={"www-authenticate": "Bearer"})
