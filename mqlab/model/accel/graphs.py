"""Decode steps as graphs: one launch where there would be hundreds."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from mqlab.bars import progress_bar, ticking
from mqlab.config import EngineConfig
from mqlab.model.accel.accelerator import Accelerator
from mqlab.model.accel.buffers import Batch, StepBuffers
from mqlab.model.accel.decoder import DeviceDecoder
from mqlab.model.kv import Pool
from mqlab.plan import Chunk, Plan

if TYPE_CHECKING:
    from tqdm import tqdm


class Graphs:
    """A graph for each of some batch sizes; a batch takes the next larger one, whose other rows store nothing and see nothing.

    They read the step's buffers and write one logits tensor. The largest is captured first, so that the others fit in its memory.

    Args:
        accelerator: captures.
        decoder: what is captured, over ``cache``, whose memory must outlive the graphs.
        buffers: a step's inputs.
        sizes: batch sizes, ascending; none for no graphs.
        compiled: run the decoder through torch.compile first.
    """

    def __init__(
        self,
        accelerator: Accelerator,
        decoder: DeviceDecoder,
        cache: list[Pool],
        buffers: StepBuffers,
        sizes: tuple[int, ...],
        compiled: bool = False,
    ) -> None:
        self._sizes = sizes
        self._logits = torch.empty(max(sizes, default=0), decoder.arch.vocab, device=accelerator.device)
        self._replays: dict[int, Callable[[], None]] = {}
        states = torch.compile(decoder.states) if compiled else decoder.states
        with _progress(accelerator, sizes, compiled) as bar, ticking(bar):
            for size in sizes[::-1]:
                bar.set_postfix_str(f"{size} sequence{'s' * (size > 1)}")
                step = partial(_step, states, decoder.logits, buffers.graph_batch(size), cache, self._logits[:size])
                if compiled:
                    step()  # no request must wait for a compiler, on a CPU neither
                self._replays[size] = accelerator.capture(step)
                bar.update()

    def size_for(self, plan: Plan) -> int | None:
        """The graph of a plan; None where there is none so large, or not all of it decodes."""
        place = bisect_left(self._sizes, len(plan.chunks))
        return self._sizes[place] if place < len(self._sizes) and all(map(_decodes, plan.chunks)) else None

    def run(self, size: int) -> Tensor:
        """Logits [size, vocab] float32, good until the next run of any graph."""
        self._replays[size]()
        return self._logits[:size]


def _progress(accelerator: Accelerator, sizes: Sequence[int], compiled: bool) -> tqdm:
    """A bar that names what is done, none where nothing is: a CPU captures nothing."""
    captures = accelerator.device.type == "cuda"
    work = " and ".join(["compiling"] * compiled + ["capturing graphs"] * captures)
    return progress_bar(work, shown=bool(sizes and work), total=len(sizes), unit="size")


def _step(states: Callable[..., Tensor], logits: Callable[..., Tensor], batch: Batch, cache: list[Pool], out: Tensor) -> None:
    """What is captured. No method, for a graph must not hold the object that holds it: memory would wait for a collector."""
    logits(states(batch, cache), out=out)


def _decodes(chunk: Chunk) -> bool:
    """Whether it is one token whose logits are all that is wanted of it."""
    return len(chunk.tokens) == 1 and chunk.samples and chunk.scored is None and chunk.pooling is None


def graph_sizes(config: EngineConfig) -> tuple[int, ...]:
    """Batch sizes to capture, ascending: those of the config, or 1, 2, 4, 8 and on by eights; none above ``max_num_seqs``."""
    if config.enforce_eager:
        return ()
    most = config.max_num_seqs
    sizes = config.cuda_graph_sizes or (1, 2, 4, *range(8, most, 8), most)
    return tuple(sorted({size for size in sizes if size <= most}))
