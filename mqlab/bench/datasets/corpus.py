"""Passages of real English, so that detokenising and stop strings meet what they meet in use."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from mqlab.bench.datasets.files import read_text
from mqlab.bench.datasets.random_ids import INPUT_LEN, OUTPUT_LEN
from mqlab.bench.datasets.sample import Encoder, Sample
from mqlab.bench.options import DatasetConfig
from mqlab.errors import ConfigError


def corpus_samples(config: DatasetConfig, tokenizer: Encoder, count: int, rng: np.random.Generator) -> list[Sample]:
    """``count`` windows of exactly ``input_len`` ids, each from a random place in the text.

    Raises:
        ConfigError: the text is shorter than one prompt.
    """
    length = config.input_len or INPUT_LEN
    ids = tokenizer.encode(_text(config.dataset_path), add_special_tokens=False)
    if len(ids) <= length:
        raise ConfigError(f"--input-len={length} needs a text of more tokens; this one has {len(ids)}: name another with --dataset-path")
    starts = rng.integers(len(ids) - length, size=count, endpoint=True).tolist()
    return [Sample(tuple(ids[start : start + length]), length, config.output_len or OUTPUT_LEN) for start in starts]


def _text(path: str | None) -> str:
    if path is not None:
        return read_text(Path(path), "plain text in UTF-8")
    from pydoc_data.topics import topics

    return "\n\n".join(topics.values())
