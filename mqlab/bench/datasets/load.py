"""From the settings to samples: which dataset, which seed, and what happens when it has too few."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np

from mqlab.bench.datasets.corpus import corpus_samples
from mqlab.bench.datasets.detect import detect
from mqlab.bench.datasets.random_ids import prefix_samples, random_samples
from mqlab.bench.datasets.sample import Encoder, Sample
from mqlab.bench.datasets.sharegpt import sharegpt_samples
from mqlab.bench.datasets.sonnet import sonnet_samples
from mqlab.bench.datasets.trace import trace_samples
from mqlab.bench.options import DatasetConfig
from mqlab.errors import ConfigError

Loader = Callable[[DatasetConfig, Encoder, int, np.random.Generator], list[Sample]]

_LOADERS: dict[str, Loader] = {
    "random": random_samples,
    "corpus": corpus_samples,
    "prefix": prefix_samples,
    "sharegpt": sharegpt_samples,
    "sonnet": sonnet_samples,
    "trace": trace_samples,
}

_log = logging.getLogger(__name__)


def settled(config: DatasetConfig) -> DatasetConfig:
    """The same with the dataset's name and the seed filled in: what a result must record to be repeatable.

    Raises:
        ConfigError: there is no such file, or it is of no known kind.
    """
    if config.dataset_path is not None and not Path(config.dataset_path).is_file():
        raise ConfigError(f"--dataset-path={config.dataset_path!r}: there is no such file")
    name = config.dataset_name or ("random" if config.dataset_path is None else detect(Path(config.dataset_path)))
    return replace(config, dataset_name=name, seed=secrets.randbits(32) if config.seed is None else config.seed)


def load_samples(config: DatasetConfig, tokenizer: Encoder, count: int) -> list[Sample]:
    """``count`` samples, in the order to send them.

    A ShareGPT file with too few usable conversations is oversampled (prompts repeat, as in vLLM's benchmarks) unless
    ``config.oversample`` is off; it and a trace then give what they have. Either is said in a warning.

    Args:
        config: pass ``settled(config)`` to know the seed.
        tokenizer: counts text, and bounds made-up ids.

    Raises:
        ConfigError: the file cannot be used; names file, place and what was expected. A setting that the dataset has no use for.
    """
    config = settled(config)
    assert config.dataset_name is not None
    rng = np.random.default_rng(config.seed)
    samples = _LOADERS[config.dataset_name](config, tokenizer, count, rng)
    if not samples:
        raise ConfigError(f"{config.dataset_path}: nothing in it can be used as a {config.dataset_name} dataset")
    if len(samples) < count:
        return _too_few(samples, config, count, rng)
    return samples


def _too_few(samples: list[Sample], config: DatasetConfig, count: int, rng: np.random.Generator) -> list[Sample]:
    have = f"{config.dataset_path} has {len(samples)} usable requests where {count} were asked for"
    if config.dataset_name == "trace" or not config.oversample:
        _log.warning("%s: these are all that will be sent", have)
        return samples
    _log.warning("%s: prompts repeat, which flatters a prefix cache (--no-oversample sends each once)", have)
    return samples + [samples[i] for i in rng.integers(len(samples), size=count - len(samples))]
