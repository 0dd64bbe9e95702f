"""The bytes of a stream do not hang on the way that they take: looked up and written at once, or read as outputs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqlab.front.choice import ChoiceReader, Tally
from mqlab.server.http.line import AsgiLine
from mqlab.server.metrics.meter import Meter
from mqlab.server.metrics.metrics import ServerMetrics
from mqlab.server.openai.answer import Piece
from mqlab.server.openai.chatpiece import ChatPiece
from mqlab.server.openai.completions import TextPiece
from mqlab.server.openai.sinks import StreamSink
from mqlab.server.openai.stream import Chunks, Head
from mqlab.text.tokenizer import Tokenizer
from mqlab.types import Delta, Output, SamplingParams

CHUNKS = Chunks(Head("id", 5, "model"), "chunk", include_usage=True)
WORDS = 'naïve 🙂🙂 日本語 "q" \\ \n\x00\x7f</s><|im_end|> ok  two'


class Way(AsgiLine):
    """A line that keeps what is written; open or not."""

    def __init__(self, ready: bool) -> None:
        super().__init__(self._nothing, self._nothing)  # type: ignore[arg-type]
        self.ready = ready
        self.written: list[bytes] = []

    async def _nothing(self, *message: Any) -> None:
        """Neither comes nor goes."""

    def write(self, data: bytes) -> None:
        self.written.append(data)


class Answer:
    """The owner of one choice."""

    def __init__(self) -> None:
        self.asked = 0
        self.error: Exception | None = None

    def note(self, sink: Any, output: Output, now: float) -> None:
        sink.show(output)

    def news(self) -> None:
        self.asked += 1

    def fail(self, sink: Any, error: Exception) -> None:
        self.error = error


@pytest.fixture(scope="module")
def tokenizer(model_folder: Path) -> Tokenizer:
    return Tokenizer.load(model_folder)


def sink_of(way: Way, tokenizer: Tokenizer, piece: Piece, params: SamplingParams) -> StreamSink:
    reader = ChoiceReader("r", 0, tokenizer, params, Tally(3, 1))
    times = Meter(ServerMetrics(), params, 1).choice(0)
    return StreamSink(way, CHUNKS, Answer(), 0, 0, reader, piece, times)


def slow(tokenizer: Tokenizer, piece: Piece, params: SamplingParams, deltas: list[Delta]) -> list[bytes]:
    """What reading each delta gives."""
    reader = ChoiceReader("r", 0, tokenizer, params, Tally(3, 1))
    events = [b"".join(map(CHUNKS.choice, piece.events(reader.read(delta)))) for delta in deltas]
    return [event for event in events if event]


@st.composite
def streams(draw: st.DrawFn) -> tuple[list[Any], str, bool]:
    """Where to cut a text's ids into deltas, mixed with ids of any kind; how it ends; whether special tokens are hidden."""
    ids = draw(st.lists(st.one_of(st.integers(0, 60), st.integers(0, 49151), st.just("words")), max_size=12))
    return ids, draw(st.sampled_from(("length", "stop", "abort"))), draw(st.booleans())


@pytest.mark.parametrize("kind", [TextPiece, ChatPiece])
@given(stream=streams(), sizes=st.lists(st.integers(0, 3), min_size=1, max_size=8))
def test_what_is_looked_up_is_what_is_read(
    tokenizer: Tokenizer, kind: type[Piece], stream: tuple[list[Any], str, bool], sizes: list[int]
) -> None:
    parts, finish, hidden = stream
    ids = [id for part in parts for id in (tokenizer.encode(WORDS) if part == "words" else [part])]
    params = SamplingParams(skip_special_tokens=hidden)
    deltas = [Delta("r", ids[:1])]
    at = 1
    while at < len(ids):
        size = sizes[at % len(sizes)] or 1
        deltas.append(Delta("r", ids[at : at + size]))
        at += size
    deltas[-1].finish = finish  # type: ignore[assignment]
    way = Way(ready=True)
    sink = sink_of(way, tokenizer, kind(0), params)
    for delta in deltas:
        sink.put(delta)
    assert way.written == slow(tokenizer, kind(0), params, deltas)


@given(pauses=st.lists(st.booleans(), min_size=30, max_size=30), stop=st.sampled_from(((), ("語", "tw"))))
def test_what_a_pause_holds_back_is_sent_once_and_in_order(tokenizer: Tokenizer, pauses: list[bool], stop: tuple[str, ...]) -> None:
    ids = tokenizer.encode(WORDS)
    deltas = [Delta("r", [id]) for id in ids]
    deltas[-1].finish = "length"
    way = Way(ready=False)
    sink = sink_of(way, tokenizer, TextPiece(0), SamplingParams(stop=stop))
    for place, delta in enumerate(deltas):
        if pauses[place % 30]:
            sink.release()
            way.ready = True
        else:
            way.ready = False
        sink.put(delta)
    sink.release()
    expected = slow(tokenizer, TextPiece(0), SamplingParams(stop=stop), [Delta("r", ids, finish="length")])
    assert said(way.written) == said(expected)


def said(events: list[bytes]) -> str:
    """The text of a stream of one completion."""
    import msgspec

    blocks = b"".join(events).decode().split("\n\n")[:-1]
    return "".join(msgspec.json.decode(block.removeprefix("data: "))["choices"][0]["text"] for block in blocks)
