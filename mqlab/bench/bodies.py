"""Samples become the bodies that an OpenAI-compatible server takes, encoded before the run begins."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from mqlab.bench.datasets import Sample
from mqlab.bench.load_options import LoadConfig
from mqlab.errors import ConfigError

Decode = Callable[[Sequence[int]], str]


def make_body(sample: Sample, load: LoadConfig, model: str, *, ignore_eos: bool, decode: Decode | None = None) -> bytes:
    """The JSON of one streamed request that asks for usage.

    Args:
        decode: ids to text, for chat, which takes text only; its length in tokens may then change.

    Raises:
        ConfigError: a chat needs text and there is nothing to make it with.
    """
    body: dict[str, Any] = {"model": model, **_prompt(sample, load, decode), "temperature": load.temperature}
    body |= {"stream": True, "stream_options": {"include_usage": True}}
    if ignore_eos:
        body["ignore_eos"] = True
    return msgspec.json.encode(body | load.extra_fields)


def _prompt(sample: Sample, load: LoadConfig, decode: Decode | None) -> dict[str, Any]:
    if not load.chat:
        return {"prompt": sample.prompt, "max_tokens": sample.output_tokens}
    if isinstance(sample.prompt, str):
        text = sample.prompt
    elif decode is not None:
        text = decode(sample.prompt)
    else:
        raise ConfigError("--backend openai-chat takes text, and this dataset gives token ids: name the model's --tokenizer")
    return {"messages": [{"role": "user", "content": text}], "max_completion_tokens": sample.output_tokens}
