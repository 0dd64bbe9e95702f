"""A plan as flat tensors."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from mqlab.plan import Chunk, Plan


@dataclass(frozen=True)
class BatchTensors:
    """One step over T tokens of C chunks, S of which are sampled.

    Attributes:
        tokens: [T] int64, token ids.
        positions: [T] int64, positions within their sequences.
        slots: [T] int64, where keys and values go: block * block size + offset.
        chunk_rows: [T] int32, the chunk that a token belongs to.
        query_starts: [C + 1] int32, where each chunk begins among the tokens.
        contexts: [C] int32, length of each sequence after this step.
        tables: [C, max blocks] int32, physical blocks in order, padded with 0.
        logit_rows: [S] int64, the tokens whose logits are sampled: a chunk's last, and as many more as it has drafts.
    """

    tokens: Tensor
    positions: Tensor
    slots: Tensor
    chunk_rows: Tensor
    query_starts: Tensor
    contexts: Tensor
    tables: Tensor
    logit_rows: Tensor

    @staticmethod
    def of(plan: Plan, block_size: int) -> BatchTensors:
        """Lay out a plan with at least one chunk."""
        chunks = plan.chunks
        lengths = np.array([len(chunk.tokens) for chunk in chunks])
        starts = np.concatenate([[0], lengths.cumsum()])
        chunk_rows = np.repeat(np.arange(len(chunks)), lengths)
        offsets = np.array([chunk.start for chunk in chunks]) - starts[:-1]
        positions = np.arange(starts[-1]) + offsets[chunk_rows]
        tables = _block_tables(chunks)
        slots = tables[chunk_rows, positions // block_size].astype(np.int64) * block_size + positions % block_size
        return BatchTensors(
            # A draw of a request that had nothing to choose from is -1; what comes after it is not used.
            tokens=torch.tensor([token for chunk in chunks for token in chunk.tokens]).clamp_(min=0),
            positions=torch.from_numpy(positions),
            slots=torch.from_numpy(slots),
            chunk_rows=torch.from_numpy(chunk_rows.astype(np.int32)),
            query_starts=torch.from_numpy(starts.astype(np.int32)),
            contexts=torch.tensor([chunk.end for chunk in chunks], dtype=torch.int32),
            tables=torch.from_numpy(tables),
            logit_rows=torch.from_numpy(_logit_rows(chunks, starts[1:])),
        )


def _logit_rows(chunks: tuple[Chunk, ...], ends: np.ndarray) -> np.ndarray:
    counts = np.array([chunk.drafts + 1 if chunk.samples else 0 for chunk in chunks])
    last = np.repeat(ends - 1, counts)
    return last - (np.repeat(counts.cumsum(), counts) - 1 - np.arange(len(last)))


def _block_tables(chunks: tuple[Chunk, ...]) -> np.ndarray:
    tables = np.zeros((len(chunks), max(len(chunk.blocks) for chunk in chunks)), np.int32)
    for row, chunk in enumerate(chunks):
        tables[row, : len(chunk.blocks)] = chunk.blocks
    return tables
