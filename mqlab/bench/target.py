"""The server under load: its model, and a tokenizer that fits."""

from __future__ import annotations

import logging
import urllib.request
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from urllib.parse import urlsplit

import msgspec
import psutil

from mqlab.bench.datasets import ByteTokenizer, Encoder
from mqlab.bench.load_options import LoadConfig
from mqlab.config import Settings
from mqlab.errors import ConfigError
from mqlab.models.fetch import KNOWN
from mqlab.models.resolve import resolve
from mqlab.text.tokenizer import Tokenizer

_ASK_TIMEOUT_S = 30.0
_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))
"""Goes where the load goes, which takes no proxy either."""

_LOOPBACK = ("127.0.0.1", "localhost", "::1")

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Target:
    """Where requests go.

    Attributes:
        url: the server.
        model: the name to ask it for.
        tokenizer_name: None where nothing fits the model.
        tokenizer: the model's, or None.
    """

    url: str
    model: str
    headers: dict[str, str]
    tokenizer_name: str | None
    tokenizer: Tokenizer | None

    @property
    def encoder(self) -> Encoder:
        """What makes and counts prompts; bytes where nothing fits the model."""
        return self.tokenizer or ByteTokenizer()


def find_target(load: LoadConfig, url: str | None = None) -> Target:
    """Ask the server for its model where none is named, and load the tokenizer where it is named or lies on this machine.

    Raises:
        ConfigError: no model is named and the server does not answer. ModelError: a tokenizer that was named cannot be loaded.
    """
    url = (url or load.url).rstrip("/").removesuffix("/v1")
    key = Settings.read().openai_api_key
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    model = load.model or _first_model(url, headers)
    name = load.tokenizer or (model if model in KNOWN or Path(model).is_dir() else None)
    if name is None:
        _log.warning("no tokenizer is known for %r: prompts are made of bytes; --tokenizer names one", model)
    return Target(url, model, headers, name, Tokenizer.load(resolve(name, Settings.read().cache_dir)) if name else None)


def server_pid(url: str) -> int | None:
    """The process that listens at a loopback URL; None where it is elsewhere, or another user's."""
    address = urlsplit(url)
    if address.hostname not in _LOOPBACK:
        return None
    port = address.port or (443 if address.scheme == "https" else 80)
    try:
        listening = [one for one in psutil.net_connections("tcp") if one.status == psutil.CONN_LISTEN]
    except psutil.Error:
        return None
    return next((one.pid for one in listening if getattr(one.laddr, "port", None) == port and one.pid), None)


class _Model(msgspec.Struct):
    id: str


class _Models(msgspec.Struct):
    data: list[_Model]


def _first_model(url: str, headers: dict[str, str]) -> str:
    try:
        with _OPENER.open(urllib.request.Request(f"{url}/v1/models", headers=headers), timeout=_ASK_TIMEOUT_S) as response:
            return msgspec.json.decode(response.read(), type=_Models).data[0].id
    except (OSError, HTTPException, ValueError, msgspec.MsgspecError, IndexError) as error:
        raise ConfigError(f"{url}/v1/models does not say what is served ({error}): start a server there, or name the --model") from None
