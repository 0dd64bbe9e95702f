"""ShareGPT: a JSON list of conversations, of which the first two turns make a request. The rules are vLLM's."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path

import msgspec
import numpy as np

from mqlab.bars import progress_bar
from mqlab.bench.datasets.files import bad_file
from mqlab.bench.datasets.sample import Encoder, Sample
from mqlab.bench.options import DatasetConfig
from mqlab.errors import ConfigError

MIN_TOKENS = 4
MAX_PROMPT_TOKENS = 1024
MAX_TOTAL_TOKENS = 2048

_EXPECTED = 'a JSON list of {"conversations": [{"from": …, "value": text}, …]}'


class Turn(msgspec.Struct, gc=False):
    """What one side said."""

    value: str


class Conversation(msgspec.Struct):
    """Turns in order; some files hold empty ones."""

    conversations: list[Turn] = []


_DECODER = msgspec.json.Decoder(list[Conversation])


def sharegpt_samples(config: DatasetConfig, tokenizer: Encoder, count: int, rng: np.random.Generator) -> list[Sample]:
    """At most ``count`` first turns in random order, each to be answered with as many tokens as it was, or ``output_len``.

    Left out, as in vLLM: prompts or answers below 4 tokens, prompts above 1,024, both together above 2,048.

    Raises:
        ConfigError: the file is not of this form; names the place.
    """
    assert config.dataset_path is not None
    pairs = [one.conversations[:2] for one in _read(Path(config.dataset_path)) if len(one.conversations) >= 2]
    order = rng.permutation(len(pairs))
    samples = _samples(((pairs[i][0].value, pairs[i][1].value) for i in order), tokenizer, config.output_len)
    return list(progress_bar("prompts", iterable=islice(samples, count), total=min(count, len(pairs)), unit="prompt", leave=False))


def _samples(pairs: Iterable[tuple[str, str]], tokenizer: Encoder, output_len: int | None) -> Iterator[Sample]:
    for prompt, answer in pairs:
        prompt_len = len(tokenizer.encode(prompt))
        answer_len = output_len or len(tokenizer.encode(answer))
        long_enough = prompt_len >= MIN_TOKENS and (output_len is not None or answer_len >= MIN_TOKENS)
        if long_enough and prompt_len <= MAX_PROMPT_TOKENS and prompt_len + answer_len <= MAX_TOTAL_TOKENS:
            yield Sample(prompt, prompt_len, answer_len)


def _read(path: Path) -> list[Conversation]:
    try:
        data = path.read_bytes()
        return _DECODER.decode(data)
    except msgspec.ValidationError as error:
        raise bad_file(path, _place(str(error)), str(error).partition(" - at ")[0], _EXPECTED) from None
    except msgspec.DecodeError:
        raise _malformed(path) from None
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from error


def _place(message: str) -> str:
    """``entry 3, $[3].conversations[0]`` of msgspec's ``… - at `$[3].conversations[0]```."""
    _, found, path = message.partition(" - at `")
    return f"at {path.rstrip('`')} (entries count from 0)" if found else ""


def _malformed(path: Path) -> ConfigError:
    """Only the standard library's parser says where JSON ends."""
    text = path.read_text(encoding="utf-8", errors="replace")
    try:
        json.loads(text)
    except json.JSONDecodeError as error:
        cut = "; it was cut short, fetch it again" if error.pos >= len(text.rstrip()) or "Unterminated" in error.msg else ""
        return bad_file(path, f"character {error.pos:,} of {len(text):,} (line {error.lineno:,})", error.msg + cut, _EXPECTED)
    return bad_file(path, "", "is not UTF-8", _EXPECTED)
