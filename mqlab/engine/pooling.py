"""The hidden states of a prompt become its embedding."""

from __future__ import annotations

from mqlab.engine.sequence import Sequence


def embedding(sequence: Sequence) -> bytes | None:
    """float32 [hidden] of a sequence whose prompt is computed; None of one that is not embedded."""
    if sequence.pooling is None or sequence.pooled is None:
        return None
    import numpy as np  # an engine that embeds nothing starts without it

    vector = sequence.pooled.astype(np.float64)
    if sequence.pooling.kind == "mean":
        vector = vector / sequence.num_prompt
    if sequence.pooling.normalize:
        vector = vector / max(float(np.linalg.norm(vector)), np.finfo(np.float64).tiny)
    return vector.astype(np.float32).tobytes()
