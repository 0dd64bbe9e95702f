"""What a simulated model says: English, as a function of the request alone.

The KV memory of a real model makes the next token depend on all tokens before it, whatever batch, chunk or cached block they came in.
Here each block keeps one number, the place in a text at which the model stands behind the block's last token. A token that is the text's
next one moves on by one; any other moves to a place that follows from both, so that the place behind a prompt depends on all of it. What
is said next is what the text has at that place. A scheduler that gives a sequence a wrong block, or an old one, makes it say something
else. A request that is not greedy speaks from a place that follows from its seed.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence

import numpy as np

from mqlab.logprobs import Logprobs, made_up
from mqlab.plan import Chunk, Plan, SampledTokens

_STRIDE = 1_000_003
"""Prime, and above the length of any text here: by the same token different places lead to different ones."""

_SPREAD = 7_919
_NOTHING = -1
_SEARCHED = 256


class SimTokens:
    """The memory of a simulated model, and what it says to one plan after the other. Masks and bans are heeded, nothing else that steers.

    Args:
        text: ids to speak, at least one.
        vocab: how many ids there are.
        num_blocks, block_size: of the KV memory.
        eos: end tokens; they go first where nothing of the text is allowed.
        hidden: length of an embedding.
    """

    def __init__(self, text: array[int], vocab: int, num_blocks: int, block_size: int, eos: tuple[int, ...] = (), hidden: int = 8) -> None:
        self._text = text
        self._vocab = vocab
        self._block_size = block_size
        self._eos = eos
        self._hidden = hidden
        self._places = [0] * num_blocks
        self._before = SampledTokens(())

    def run(self, plan: Plan) -> SampledTokens:
        """All rounds of a plan, which follows those that were run before."""
        text, places, size, length = self._text, self._places, self._block_size, len(self._text)
        before = self._before.tokens
        given: list[tuple[int, ...]] = []
        rounds, special = 1, False
        # First what prompts write, which others of the plan may read: who finds all but its last token in a block that is being filled.
        filling = iter([self._said(chunk) for chunk in plan.chunks if len(chunk.tokens) > 1 and not chunk.drafts])
        # One token of one sequence, as nearly all are, costs 0.3 µs here: with 256 of them a step each detour counts.
        for chunk in plan.chunks:
            tokens, start, params = chunk.tokens, chunk.start, chunk.params
            special = special or params.logprobs is not None
            if (
                len(tokens) != 1
                or not start
                or chunk.rounds > 1
                or chunk.banned
                or chunk.mask is not None
                or chunk.scored is not None
                or not chunk.samples
            ):
                rounds = max(rounds, chunk.rounds)
                special = special or chunk.scored is not None or chunk.pooling is not None
                said = next(filling) if len(tokens) > 1 and not chunk.drafts else self._said(chunk.resolved(self._before))
                if chunk.samples:
                    given.append(said)
                continue
            token = tokens[0] if chunk.follows is None else before[chunk.follows][-1]
            blocks = chunk.blocks
            place = places[blocks[-1] if start % size else blocks[-2]]
            place = (place + 1) % length if token == text[place] else (place * _STRIDE + token * _SPREAD + 1) % length
            places[blocks[-1]] = place
            if not (params.temperature < 1e-5 or params.top_k == 1):
                place = (chunk.seed * _STRIDE + chunk.output_index) % length
            given.append((text[place],))
        self._before = sampled = SampledTokens(tuple(given), rounds)
        return self._scored(plan, sampled) if special else sampled

    def _said(self, chunk: Chunk) -> tuple[int, ...]:
        """What any chunk gives: none where it does not sample, else a token a round, or those that its guesses led to."""
        known = chunk.tokens[: len(chunk.tokens) - chunk.drafts]
        end = chunk.start + len(known)
        place = self._moved(chunk.blocks, chunk.start, known)
        said: list[int] = []
        for number in range((chunk.drafts + 1 if chunk.drafts else chunk.rounds) if chunk.samples else 0):
            if number:
                place = self._moved(chunk.blocks, end, said[-1:])
                end += 1
            said.append(self._draw(chunk, place, number))
            if number < chunk.drafts and said[-1] != chunk.tokens[number - chunk.drafts]:
                break
        return tuple(said)

    def _moved(self, blocks: tuple[int, ...], start: int, tokens: Sequence[int]) -> int:
        """The place behind ``tokens``, which stand at ``start``; kept in their blocks."""
        text, length, size, places = self._text, len(self._text), self._block_size, self._places
        place = places[blocks[(start - 1) // size]] if start else 0
        end = start + len(tokens)
        while start < end:
            stop = min(end, (start // size + 1) * size)
            for token in tokens[start - end : stop - end or None]:
                place = (place + 1) % length if token == text[place] else (place * _STRIDE + token * _SPREAD + 1) % length
            places[blocks[start // size]] = place
            start = stop
        return place

    def _draw(self, chunk: Chunk, place: int, number: int) -> int:
        """The draw after ``number`` others of the chunk, with the model at ``place``."""
        if not chunk.params.greedy:
            place = (chunk.seed * _STRIDE + chunk.output_index + number) % len(self._text)
        banned = chunk.banned if number < chunk.banned_rounds else ()
        token = self._text[place]
        if chunk.mask is None and token not in banned:
            return token
        return self._allowed(place, chunk.mask, banned)

    def _allowed(self, place: int, mask: np.ndarray | None, banned: Iterable[int]) -> int:
        """The first allowed token of the text from ``place`` on, or an end token, or any; -1 where none is allowed."""
        allowed = np.ones(self._vocab, bool) if mask is None else np.unpackbits(mask.view(np.uint8), count=self._vocab, bitorder="little")
        allowed = allowed.astype(bool)
        allowed[list(banned)] = False
        length = len(self._text)
        nearby = [self._text[(place + ahead) % length] for ahead in range(min(_SEARCHED, length))]
        for token in (*nearby, *self._eos):
            if allowed[token]:
                return token
        left = np.flatnonzero(allowed)
        return int(left[place % len(left)]) if len(left) else _NOTHING

    def _scored(self, plan: Plan, sampled: SampledTokens) -> SampledTokens:
        """With logprobs and embeddings, made up, of the chunks that ask for them."""
        wanted = [chunk.params.logprobs for chunk in plan.sampling]
        logprobs = [None if count is None else self._made_up(own, count) for count, own in zip(wanted, sampled.tokens, strict=True)]
        scored = {row: one.scored.targets for row, one in enumerate(plan.chunks) if one.scored}
        return SampledTokens(
            sampled.tokens,
            sampled.rounds,
            tuple(logprobs) if any(logprobs) else None,
            {row: self._made_up(targets, plan.chunks[row].params.prompt_logprobs or 0) for row, targets in scored.items()},
            {row: self._state(one) for row, one in enumerate(plan.chunks) if one.pooling},
        )

    def _made_up(self, tokens: Sequence[int], count: int) -> Logprobs:
        return made_up(tokens, count, self._vocab)

    def _state(self, chunk: Chunk) -> np.ndarray:
        """Of a chunk's final hidden states what it asks for, float32 [hidden]: each has a one where its token id says."""
        tokens = {"mean": chunk.tokens, "last": chunk.tokens[-1:], "cls": chunk.tokens[:1]}[chunk.pooling or "mean"]
        return np.bincount(np.array(tokens) % self._hidden, minlength=self._hidden).astype(np.float32)
