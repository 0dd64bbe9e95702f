"""What a load process notes of one answer while it arrives."""

from __future__ import annotations

import msgspec

from mqlab.bench.load.messages import Record
from mqlab.bench.load.sse import DONE, Chunk, SseReader, decode_chunk


class AnswerError(Exception):
    """The answer is not what was asked for."""


class Answer:
    """Reads one stream into its record. Time is handed in, so the arithmetic can be tested without waiting."""

    def __init__(self, record: Record, keep_text: bool) -> None:
        self._record = record
        self._reader = SseReader()
        self._texts: list[str] | None = [] if keep_text else None
        self._counted = True
        self._finish_ns: int | None = None
        self._done = False

    def feed(self, data: bytes, now_ns: int) -> None:
        """Take bytes that arrived at ``now_ns``.

        Raises:
            AnswerError: an error event, or data that is no chunk.
        """
        for payload in self._reader.feed(data):
            if payload == DONE:
                self._done = True
            else:
                self._take(_decode(payload), now_ns)

    def close(self) -> None:
        """The stream has ended.

        Raises:
            AnswerError: before the answer did.
        """
        record = self._record
        if not self._done and self._finish_ns is None:
            raise AnswerError(f"the stream ended after {len(record.event_ns)} events with new text, without a finish reason or [DONE]")
        if not record.event_ns and self._finish_ns is not None:  # tokens without text: all that is known is when they were over
            record.event_ns.append(self._finish_ns)
        if not self._counted or len(record.event_tokens) != len(record.event_ns):
            record.event_tokens = []
        record.text = "".join(self._texts or ())

    def _take(self, chunk: Chunk, now_ns: int) -> None:
        if chunk.failure:
            raise AnswerError(f"error event: {chunk.failure:.300}")
        if chunk.usage is not None:
            self._take_usage(chunk)
        for choice in chunk.choices:
            text, ids = choice.new_text, choice.token_ids
            if text or ids:
                self._record.event_ns.append(now_ns)
                self._record.event_tokens.append(len(ids or ()))
                self._counted &= bool(ids)
            if self._texts is not None:
                self._texts.append(text)
            if choice.finish_reason is not None:
                self._finish_ns = now_ns

    def _take_usage(self, chunk: Chunk) -> None:
        usage, record = chunk.usage, self._record
        assert usage is not None
        record.prompt_tokens, record.output_tokens = usage.prompt_tokens, usage.completion_tokens
        if usage.prompt_tokens_details is not None:
            record.cached_tokens = usage.prompt_tokens_details.cached_tokens


def _decode(payload: bytes) -> Chunk:
    try:
        return decode_chunk(payload)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise AnswerError(f"an event is no OpenAI chunk: {payload[:100]!r}: {error}") from None
