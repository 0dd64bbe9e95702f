"""The prefix cache: what a KV block holds, known by a hash of all tokens up to its end.

Keys and values at a position depend on every token before it, so a block is found again by a chain: its name is the hash of the name of
the block before it and of its own tokens. Only full blocks have names.

Source: vLLM V1 (v1/core/kv_cache_utils.py, hash_block_tokens) for the chain; the salt's place in it is that of vLLM RFC 16016.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence as Tokens
from hashlib import blake2b

from mqlab.engine.blocks import BlockPool
from mqlab.engine.sequence import Sequence

_DIGEST_SIZE = 16  # bytes: two different beginnings share a name with a chance of 2**-64 among four billion blocks


def first_parent(salt: str) -> bytes:
    """What stands for the name before the first block's: those who use another salt share nothing."""
    return blake2b(salt.encode(), digest_size=_DIGEST_SIZE).digest()


def block_name(parent: bytes, tokens: Tokens[int]) -> bytes:
    """The name of a full block, 16 bytes, from that of the block before it and its token ids."""
    return blake2b(parent + array("i", tokens).tobytes(), digest_size=_DIGEST_SIZE).digest()


class PrefixCache:
    """Names the blocks of sequences in a pool, and finds those that hold the beginning of another.

    Attributes:
        queries: tokens of prompts that were looked up; hits: those that were found. Counted by who admits.
    """

    def __init__(self, pool: BlockPool, block_size: int) -> None:
        self._pool = pool
        self._block_size = block_size
        self.queries = self.hits = 0

    def find(self, sequence: Sequence) -> tuple[int, ...]:
        """The blocks that hold the beginning of a sequence: never its last token, which must be run to go on from."""
        found: list[int] = []
        for index in range(_readable(sequence) // self._block_size):
            block = self._pool.find(self._name(sequence, index))
            if block is None:
                break
            found.append(block)
        return tuple(found)

    def note(self, sequence: Sequence, written: int) -> None:
        """Name the sequence's blocks that are full once its first ``written`` tokens are in the cache, all of them known."""
        full = written // self._block_size
        for index in range(sequence.named, full):
            self._pool.name(sequence.blocks[index], self._name(sequence, index))
        sequence.named = full
        sequence.name_at = (full + 1) * self._block_size

    def _name(self, sequence: Sequence, index: int) -> bytes:
        names = sequence.names
        while len(names) <= index:
            start = len(names) * self._block_size
            parent = names[-1] if names else first_parent(sequence.salt)
            names.append(block_name(parent, sequence.tokens[start : start + self._block_size]))
        return names[index]


def _readable(sequence: Sequence) -> int:
    """Tokens at its beginning that need not be run: all but the last, unless their hidden states are wanted."""
    if sequence.pooling is not None and sequence.pooling.kind != "last":
        return 0
    if sequence.params.prompt_logprobs is not None and sequence.scored < sequence.num_prompt - 1:
        return sequence.scored
    return len(sequence.tokens) - 1
