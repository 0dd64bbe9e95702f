"""One answer of a server, taken apart: what its stream is made of, before many of them are only counted."""

from __future__ import annotations

import http.client
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import msgspec

from mqlab.errors import BenchError

MARK = b'"content":"'
"""In each chunk with a token, once: text cannot hold it, for JSON escapes its quotes."""

PATH = "/v1/chat/completions"
_QUESTION = "Name the parts of a small engine that turns prompts into words, one after the other, and say in a line what each of them does."
_TOKENS = 16
_TIMEOUT_S = 60.0


@dataclass(frozen=True)
class Answer:
    """A stream, as bytes of its events.

    Attributes:
        head: what comes before the first chunk with a token.
        chunk: a chunk with a token, of the usual size.
        tail: what comes behind the last.
        chunks: how many have a token. tokens: how many there were, as the server counts.
    """

    head: bytes
    chunk: bytes
    tail: bytes
    chunks: int
    tokens: int

    @property
    def extra(self) -> int:
        """How often ``MARK`` stands where no token is."""
        return self.head.count(MARK) + self.tail.count(MARK)


def request_of(url: str, model: str, tokens: int) -> bytes:
    """A whole HTTP request for a chat's stream of so many tokens, on a connection of its own."""
    address = urlsplit(url)
    body = msgspec.json.encode(_body(model, tokens))
    lines = [
        f"POST {PATH} HTTP/1.1",
        f"Host: {address.netloc}",
        "Content-Type: application/json",
        f"Content-Length: {len(body)}",
        "Connection: close",
    ]
    return "\r\n".join([*lines, "", ""]).encode() + body


def model_of(url: str) -> str:
    """The name of the model that a server has.

    Raises:
        BenchError: it does not say.
    """
    try:
        return msgspec.json.decode(_exchange(url, "GET", "/v1/models"))["data"][0]["id"]
    except (msgspec.DecodeError, KeyError, IndexError, TypeError) as error:
        raise BenchError(f"{url}/v1/models names no model ({type(error).__name__}: {error}); is it an OpenAI API?") from error


def probe(url: str, model: str) -> Answer:
    """Ask for one stream and read it.

    Raises:
        BenchError: it is no stream, or it is not as long as was asked for.
    """
    raw = _exchange(url, "POST", PATH, {**_body(model, _TOKENS), "stream_options": {"include_usage": True}})
    events = [event + b"\n\n" for event in raw.split(b"\n\n") if event.startswith(b"data: ")]
    with_token = [place for place, event in enumerate(events) if _has_token(event)]
    if not with_token or b"[DONE]" not in events[-1]:
        raise BenchError(f"{url}{PATH} gave no stream of chunks with text: {raw[:300]!r}")
    answer = _answer(events, with_token)
    if answer.tokens != _TOKENS:
        raise BenchError(f"{url}{PATH} gave {answer.tokens} tokens where {_TOKENS} were asked for: it must take ignore_eos")
    return answer


def _answer(events: list[bytes], with_token: list[int]) -> Answer:
    usage = next((one for event in events if (one := _payload(event).get("usage"))), {})
    # The usage was asked for here only; streams that are counted have neither its event nor the key in every chunk.
    plain = [event.replace(b',"usage":null', b"") for event in events if not _payload(event).get("usage")]
    chunks = sorted((plain[place] for place in with_token), key=len)
    return Answer(
        head=b"".join(plain[: with_token[0]]),
        chunk=chunks[len(chunks) // 2],
        tail=b"".join(plain[with_token[-1] + 1 :]),
        chunks=len(with_token),
        tokens=usage.get("completion_tokens", len(with_token)),
    )


def _body(model: str, tokens: int) -> dict[str, Any]:
    streamed = {"stream": True, "temperature": 0.0, "max_tokens": tokens, "ignore_eos": True, "skip_special_tokens": False}
    return {"model": model, "messages": [{"role": "user", "content": _QUESTION}], **streamed}


def _has_token(event: bytes) -> bool:
    choices = _payload(event).get("choices") or [{}]
    delta = choices[0].get("delta") or {}
    return delta.get("content") is not None and "role" not in delta


def _payload(event: bytes) -> dict[str, Any]:
    data = event.removeprefix(b"data: ").strip()
    return {} if data == b"[DONE]" else msgspec.json.decode(data, type=dict)


def _exchange(url: str, method: str, path: str, body: Mapping[str, Any] | None = None) -> bytes:
    address = urlsplit(url)
    connection = http.client.HTTPConnection(address.hostname or "", address.port or 80, timeout=_TIMEOUT_S)
    try:
        sent = None if body is None else msgspec.json.encode(body)
        connection.request(method, path, sent, {"Content-Type": "application/json", "Connection": "close"})
        response = connection.getresponse()
        content = response.read()
    except (OSError, http.client.HTTPException) as error:
        raise BenchError(f"{url}{path} does not answer ({type(error).__name__}: {error})") from error
    finally:
        connection.close()
    if response.status != 200:
        raise BenchError(f"{url}{path} answered {response.status}: {content[:300].decode(errors='replace')}")
    return content
