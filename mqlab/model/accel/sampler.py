"""Draws on a device; what a device's sampler cannot do is done by the CPU's, for the rows that ask for it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from mqlab_kernels.sample_reference import INFINITE, MASKED, NOT_A_NUMBER, sample_reference
from torch import Tensor

from mqlab.logprobs import Logprobs
from mqlab.model.accel.asked import Asked
from mqlab.model.draw import Draws
from mqlab.model.rows import Rows
from mqlab.model.sampler import Sampled, Sampler, broken_logits
from mqlab.model.steering import steers
from mqlab.plan import Chunk

_AT_ONCE = 2**21
"""Logits that plain torch draws from at once: it holds some 100 bytes of each."""

_TOPS = {MASKED: -math.inf, NOT_A_NUMBER: math.nan, INFINITE: math.inf}


@dataclass
class Draw:
    """The draws of one round.

    Attributes:
        chunks: one a row, as they were in the first round.
        by_host: of the rows that the CPU's sampler draws, what they ask for in this round.
        round: counts from 0.
        answers: of ``by_host``, in that order, once drawn.
    """

    chunks: tuple[Chunk, ...]
    by_host: Mapping[int, Chunk]
    round: int = 0
    answers: Sampled = field(default_factory=lambda: Sampled(()))

    @property
    def on_device(self) -> bool:
        """Whether they can be made without the host."""
        return not self.by_host


class DeviceSampler:
    """Chooses one token for each row of logits, the same as ``Sampler`` up to rounding.

    Rows that steer (masks, bans, biases, penalties) or want logprobs are copied to the host and drawn there; all others stay on the device.

    Args:
        max_rows: rows of a batch at most.
        vocab: length of a row.
        device: where logits are.
        backend_name: ``triton`` draws with its kernel; others with the CPU's kernels on a CPU, and with plain torch elsewhere, which asks
            the device how it went where a row has a top_p.
        logprobs_mode: of EngineConfig.

    Attributes:
        indices: [max_rows] int64 on the device, which draw of its request each row makes next.
    """

    def __init__(self, max_rows: int, vocab: int, device: torch.device, backend_name: str, logprobs_mode: str = "raw_logprobs") -> None:
        self._asked = Asked(max_rows, device)
        self._rows_at_once = max(_AT_ONCE // vocab, 1)
        self.indices = self._asked.indices
        self._host = Sampler(logprobs_mode)
        if backend_name == "triton":
            from mqlab_kernels.sample import sample  # Triton may not be installed

            self._plain = lambda logits: sample(logits, *self._asked.first(len(logits)))
        else:
            self._plain = self._by_cpu if device.type == "cpu" else self._by_torch

    def prepare(self, chunks: tuple[Chunk, ...]) -> Draw:
        """Enqueue what these chunks ask for, one a row. The draws before must have been enqueued.

        Args:
            chunks: of one token each; rows keep their places through all rounds.
        """
        self._asked.load(chunks)
        return Draw(chunks, {row: chunk for row, chunk in enumerate(chunks) if chunk.params.logprobs is not None or steers(chunk)})

    def draw(self, logits: Tensor, draw: Draw) -> Tensor:
        """One token a row; below 0 where there is none. Waits for the device unless ``draw.on_device``.

        Args:
            logits: [S or more, vocab] float32, left as they are.

        Returns:
            [S] int64 on the device.

        Raises:
            RuntimeError: of a row that the host draws, the largest logit is not a number or not finite, before any mask.
        """
        logits = logits[: len(draw.chunks)]
        if draw.on_device:
            return self._plain(logits)
        only = len(draw.by_host) == len(draw.chunks)
        tokens = torch.empty(len(logits), dtype=torch.int64, device=logits.device) if only else self._plain(logits)
        rows = torch.tensor([*draw.by_host], device=logits.device)
        draw.answers = self._host(logits.index_select(0, rows).cpu(), tuple(draw.by_host.values()))
        return tokens.index_copy_(0, rows, torch.tensor(draw.answers.tokens, device=logits.device))

    def next_round(self, draw: Draw, counted: bool = False) -> Draw:
        """The same rows, one draw on. Rows whose rounds are over draw something that is thrown away.

        Args:
            draw: of the round before, drawn.
            counted: ``indices`` have been moved on already.
        """
        if not counted:
            self.indices += 1
        drawn = zip(draw.by_host.items(), draw.answers.tokens, strict=True)
        going_on = {row: chunk.after((token,)) for (row, chunk), token in drawn if chunk.rounds > 1}
        return Draw(draw.chunks, going_on, draw.round + 1)

    def finish(self, draw: Draw, tokens_host: Sequence[int] | np.ndarray) -> Sampled:
        """What was drawn, once the host has it.

        Args:
            tokens_host: what ``draw`` gave, [S].

        Raises:
            RuntimeError: the largest logit of a row is not a number or not finite, before any mask.
        """
        tokens = tuple(map(int, tokens_host))
        for row, token in enumerate(tokens):
            if token < 0 and row not in draw.by_host and draw.chunks[row].rounds > draw.round:
                raise broken_logits(draw.chunks[row], draw.round, _TOPS[token])
        if draw.answers.logprobs is None:
            return Sampled(tokens)
        told: dict[int, Logprobs | None] = dict(zip(draw.by_host, draw.answers.logprobs, strict=True))
        return Sampled(tokens, tuple(map(told.get, range(len(tokens)))))

    def _by_torch(self, logits: Tensor) -> Tensor:
        parts = zip(*(one.split(self._rows_at_once) for one in (logits, *self._asked.first(len(logits)))), strict=True)
        return torch.cat([self._part_by_torch(*part) for part in parts])

    def _part_by_torch(
        self, logits: Tensor, temperatures: Tensor, top_ks: Tensor, top_ps: Tensor, min_ps: Tensor, seeds: Tensor, indices: Tensor
    ) -> Tensor:
        return sample_reference(logits, temperatures, top_ks, top_ps if self._asked.nucleus else None, min_ps, seeds, indices)

    def _by_cpu(self, logits: Tensor) -> Tensor:
        rows = Rows.of(logits)
        broken = rows.broken()
        tokens = Draws.asked(rows, *(one.numpy() for one in self._asked.first(len(logits)))).tokens(rows)
        for row in broken:
            top = rows.tops[row]
            tokens[row] = NOT_A_NUMBER if np.isnan(top) else INFINITE if top > 0 else MASKED
        return torch.from_numpy(tokens)
