"""Token ids to text as they arrive: whole characters only, stop strings never shown by half."""

from __future__ import annotations

from collections.abc import Sequence

from mqlab.text.bytelevel import ByteLevelDecoder
from mqlab.text.stops import StopFinder
from mqlab.text.tokenizer import Tokenizer
from mqlab.types import Finish, SamplingParams

_MARK = "\ufffd"


class Detokenizer:
    """The text of one choice, piece by piece.

    All pieces together are the text of all ids, up to the first stop string if one occurs. How the ids are cut into pushes
    makes no difference to that text. The id that ended the request (finish "stop") has no text, unless
    ``include_stop_str_in_output``. Stop strings are looked for in the text after the first ``min_tokens`` ids.

    Attributes:
        decoder: of ids; it may be asked and fed directly where no stop strings are looked for.
        stop_reason: the stop string that was found; from then on every push returns "".
        piece: the text that the last push added, before stop strings are looked for in it: nothing of it is held back.
    """

    def __init__(self, tokenizer: Tokenizer, params: SamplingParams) -> None:
        self.decoder = make_decoder(tokenizer, params.skip_special_tokens)
        self._stops = StopFinder(params.stop, params.include_stop_str_in_output) if params.stop else None
        self._unsearched = params.min_tokens if params.stop else 0
        self._keep_last = params.include_stop_str_in_output
        self.piece = ""

    @property
    def stop_reason(self) -> str | None:
        """The stop string that was found, None so far."""
        return self._stops.found if self._stops else None

    def push(self, tokens: Sequence[int], finish: Finish | None = None) -> str:
        """Add new ids, return new text.

        With ``finish`` these are the last ids: everything held back is returned, an incomplete character as U+FFFD.
        """
        if finish == "stop" and not self._keep_last:
            tokens = tokens[:-1]
        if self._stops is None:
            self.piece = self._decode(tokens, finish)
            return self.piece
        return self._searched(self._stops, tokens, finish)

    def push_each(self, tokens: Sequence[int], finish: Finish | None = None) -> tuple[str, list[str]]:
        """Add ids one by one, up to the one that completes a stop string.

        Returns:
            the new text, and what each id that was added adds to it.
        """
        if not tokens:
            return self.push(tokens, finish), []
        shown: list[str] = []
        pieces: list[str] = []
        for count in range(1, len(tokens) + 1):
            shown.append(self.push(tokens[count - 1 : count], finish if count == len(tokens) else None))
            pieces.append(self.piece)
            if self.stop_reason is not None:
                break
        return "".join(shown), pieces

    def _searched(self, stops: StopFinder, tokens: Sequence[int], finish: Finish | None) -> str:
        free, tokens = tokens[: self._unsearched], tokens[self._unsearched :]
        self._unsearched -= len(free)
        text = self.decoder.push(free) if free else ""
        searched = self._decode(tokens, finish)
        self.piece = text + searched
        return text + stops.push(searched, final=finish is not None)

    def _decode(self, tokens: Sequence[int], finish: Finish | None) -> str:
        text = self.decoder.push(tokens) if tokens else ""
        return text if finish is None else text + self.decoder.flush()


def make_decoder(tokenizer: Tokenizer, skip_special_tokens: bool = True) -> ByteLevelDecoder | IncrementalDecoder:
    """What makes text of ids as they come."""
    pieces = tokenizer.pieces(skip_special_tokens)
    return IncrementalDecoder(tokenizer, skip_special_tokens) if pieces is None else ByteLevelDecoder(pieces)


class IncrementalDecoder:
    """For any tokenizer: decodes a window of the last ids and returns what is new and settled in it.

    An incomplete character decodes to U+FFFD at the end, so text before a last U+FFFD is settled and that mark is not. The
    window moves on once the text of its last ids is the end of its own text, which costs a decode of at most a few dozen ids
    per push.

    Byte-fallback tokenizers turn a whole run of byte tokens into U+FFFD while its last character is incomplete: there nothing
    is settled until the character is, or cannot be any more. Where a run is invalid, characters shown before stay shown.
    """

    _LONGEST = 24
    _KEPT = 8
    _BYTES_PER_CHARACTER = 4

    def __init__(self, tokenizer: Tokenizer, skip_special_tokens: bool = True) -> None:
        self._tokenizer = tokenizer
        self._skip = skip_special_tokens
        self._window: list[int] = []
        self._settled = ""
        self._pending = 0

    def push(self, tokens: Sequence[int]) -> str:
        """Add ids, return the settled text that they complete."""
        if self._tokenizer.byte_fallback:
            return "".join(self._push([token]) for token in tokens)
        return self._push(tokens)

    def flush(self) -> str:
        """What is still held back, an incomplete character as U+FFFD."""
        text = self._decode(self._window)
        rest = text[len(self._settled) :] if text.startswith(self._settled) else _MARK * self._pending
        self._window, self._settled, self._pending = [], "", 0
        return rest

    def _push(self, tokens: Sequence[int]) -> str:
        self._window += tokens
        text = self._decode(self._window)
        settled = text.removesuffix(_MARK)
        if self._tokenizer.byte_fallback and settled != text:
            return self._hold()
        if not settled.startswith(self._settled):
            return self._end_invalid_run(text) if self._tokenizer.byte_fallback else self._hold()
        piece = settled[len(self._settled) :]
        self._settled, self._pending = settled, 0
        if len(self._window) > self._LONGEST:
            self._move_on(text)
        return piece

    def _hold(self) -> str:
        self._pending += 1
        if self._pending < self._BYTES_PER_CHARACTER:
            return ""
        last = self._window[-1:]
        text = self.flush()
        self._restart(last)
        return text

    def _end_invalid_run(self, text: str) -> str:
        """The bytes held back are no character, and the last id ends their run: a mark for each, then what the id itself adds."""
        piece = _MARK * self._pending + text[len(self._decode(self._window[:-1])) :]
        self._restart(self._window[-1:])
        return piece

    def _restart(self, last: list[int]) -> None:
        # What comes next is not the beginning of the text: without a left neighbour its leading space would be stripped.
        self._window, self._settled, self._pending = last, self._decode(last), 0

    def _move_on(self, text: str) -> None:
        tail = self._window[-self._KEPT :]
        tail_text = self._decode(tail)
        if text.endswith(tail_text):
            self._window = tail
            self._settled = tail_text.removesuffix(_MARK)

    def _decode(self, ids: list[int]) -> str:
        return self._tokenizer.decode(ids, self._skip)
