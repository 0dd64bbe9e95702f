"""Whatever requests carry, all at once, under every way of scheduling: each gets the answer that it gets alone, and the engine rests after.

The kind behind most cases of the engine: two features that are right by themselves and wrong together. Requests are made of a seed;
``make test-full`` takes more of them.
"""

from __future__ import annotations

import asyncio
import json
import re
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import pytest
from engines import Answer, at_rest, difference, front_of, streamed, whole

from mqlab.contract.waiting import until
from mqlab.errors import InvalidRequest, RequestFailed
from mqlab.front.frontend import Frontend
from mqlab.params import StructuredOutputs
from mqlab.types import Choice, SamplingParams

ROOM = 128
END = 2
RNG = Random(0)
STORY = [RNG.randrange(3, 49152) for _ in range(60)]
GOLDEN = SamplingParams(temperature=0, max_tokens=20, ignore_eos=True)
FEW = tuple(RNG.sample(range(260, 2000), 6))
SCHEMA = '{"type": "object", "properties": {"a": {"type": "boolean"}, "b": {"enum": ["x", "yy"]}}, "required": ["a", "b"]}'
FORMS = [
    StructuredOutputs(json=SCHEMA),
    StructuredOutputs(regex="[a-z]{3,9} [0-9]+"),
    StructuredOutputs(choice=("red", "green", "a long choice of words")),
    StructuredOutputs(json_object=True),
    StructuredOutputs(grammar='start: "[" item ("," item)* "]"\nitem: /[a-z]{1,3}/'),
]
Config = dict[str, Any]
CONFIGS: list[Config] = [
    {"async_scheduling": True, "num_kv_blocks": 40, "block_size": 4},
    {"num_scheduler_steps": 4, "num_kv_blocks": 10, "max_num_batched_tokens": 16, "max_num_seqs": 8},
    {"num_scheduler_steps": 20, "async_scheduling": True, "num_kv_blocks": 12, "multi_step_stream_outputs": False},
    {"num_speculative_tokens": 4, "prompt_lookup_min": 1, "num_kv_blocks": 40, "block_size": 4, "scheduling_policy": "priority"},
    {"num_speculative_tokens": 4, "async_scheduling": True, "num_kv_blocks": 200, "max_num_batched_tokens": 64, "max_num_seqs": 3},
    {"num_scheduler_steps": 4, "scheduling_policy": "priority", "enable_prefix_caching": False, "num_kv_blocks": 10, "max_num_seqs": 4},
]


@dataclass(frozen=True)
class Asked:
    """A request, and what it gets alone: an answer, or the text of an error."""

    prompt: list[int]
    params: SamplingParams
    wanted: Answer | str


def prompt(rng: Random) -> list[int]:
    """It begins as others do."""
    return STORY[: rng.randrange(60)] + [rng.randrange(3, 49152) for _ in range(rng.randrange(1, 25))]


def options(rng: Random, texts: list[str]) -> dict[str, Any]:
    """Values of fields, each of which is there by chance; ``texts`` are greedy ones, to take words from."""
    text = rng.choice(texts)
    at = rng.randrange(len(text) - 4)
    longest = rng.choice([0, 1, 2, 3, 5, 8, 17, 30, 50])
    offered: dict[str, tuple[float, Any]] = {
        "temperature": (0.8, rng.choice([0, 0, 0, 0.3, 2.0, 1e-6])),
        "top_k": (0.2, rng.choice([1, 2, 20, 49157, -1])),
        "top_p": (0.2, rng.choice([0.1, 0.5, 0.95])),
        "min_p": (0.15, rng.choice([0.05, 0.5, 1.0])),
        "presence_penalty": (0.2, rng.choice([-2, 0.5, 2])),
        "frequency_penalty": (0.2, rng.choice([-2, 0.5, 2])),
        "repetition_penalty": (0.2, rng.choice([0.7, 1.2, 1.7])),
        "ignore_eos": (0.5, True),
        "min_tokens": (0.3, rng.randrange(longest + 1)),
        "logprobs": (0.3, rng.choice([0, 1, 4])),
        "prompt_logprobs": (0.2, rng.choice([0, 1, 3])),
        "n": (0.3, rng.choice([2, 3])),
        "logit_bias": (0.2, {rng.choice(FEW): rng.choice([-100.0, 3.0, 100.0]), END: rng.choice([5.0, -100.0, 10.0])}),
        "stop": (0.2, (text[at : at + rng.randrange(1, 4)], "never")),
        "include_stop_str_in_output": (0.3, True),
        "stop_token_ids": (0.2, tuple(rng.sample(FEW, 2))),
        "bad_words": (0.2, (text[at : at + 4].strip() or "of",)),
        "bad_word_ids": (0.2, tuple(tuple(rng.choices(FEW, k=size)) for size in (1, 2, 3))),
        "skip_special_tokens": (0.1, False),
        rng.choice(("allowed_token_ids", "structured_outputs")): (0.3, None),
    }
    chosen = {name: value for name, (chance, value) in offered.items() if rng.random() < chance}
    if "allowed_token_ids" in chosen:
        chosen["allowed_token_ids"] = FEW + (END,) * rng.randrange(2)
    if "structured_outputs" in chosen:
        chosen["structured_outputs"] = rng.choice(FORMS)
    return {"max_tokens": longest, "seed": rng.randrange(100), **chosen}


async def alone(front: Frontend, rng: Random, count: int) -> list[Asked]:
    """Requests with what they get when nothing else runs."""
    texts = [(await whole(front, prompt(rng), SamplingParams(temperature=0, max_tokens=30))).choices[0].text for _ in range(4)]
    asked = []
    for _ in range(count):
        ids, params = prompt(rng), SamplingParams(**options(rng, texts))
        asked.append(Asked(ids, params, await answer(whole(front, ids, params))))
    return asked


async def answer(coming: Any) -> Answer | str:
    """What comes, an error as its text."""
    try:
        return await coming
    except (InvalidRequest, RequestFailed) as error:
        return f"{type(error).__name__}: {error}"


def unlawful(asked: Asked) -> list[str]:
    """Where what a request gets alone is not what it asks for."""
    if isinstance(asked.wanted, str):
        return []
    return [f"{law.__name__}: {choice} of {asked.params}" for choice in asked.wanted.choices for law in LAWS if not law(choice, asked)]


def length(choice: Choice, asked: Asked) -> bool:
    count, most = len(choice.tokens), asked.params.max_tokens or 0
    ended = count == min(most, ROOM - len(asked.prompt)) if choice.finish == "length" else count <= most
    return ended and count >= min(asked.params.min_tokens, most) - (choice.stop_reason in asked.params.stop)


def end(choice: Choice, asked: Asked) -> bool:
    params, formed = asked.params, asked.params.structured_outputs is not None
    if END in choice.tokens[:-1] and (formed or not params.ignore_eos):
        return False
    if choice.finish == "length":
        return choice.stop_reason is None
    by_the_model = choice.stop_reason is None and choice.tokens[-1] == END and (formed or not params.ignore_eos)
    by_id = choice.stop_reason in params.stop_token_ids and choice.stop_reason == choice.tokens[-1]
    return by_the_model or by_id or choice.stop_reason in params.stop


def ids(choice: Choice, asked: Asked) -> bool:
    params, tokens = asked.params, choice.tokens
    banned = [token for token, bias in params.logit_bias.items() if bias <= -100]
    words = (*params.bad_word_ids, *((token,) for token in banned))
    held = not any(tokens[i : i + len(word)] == word for word in words for i in range(len(tokens)))
    return held and (params.allowed_token_ids is None or set(tokens) <= set(params.allowed_token_ids))


def stop_strings(choice: Choice, asked: Asked) -> bool:
    params = asked.params
    if not params.stop or params.min_tokens:
        return True
    if params.include_stop_str_in_output and choice.stop_reason in params.stop:
        return choice.text.endswith(str(choice.stop_reason)) and not any(one in choice.text[:-1] for one in params.stop)
    return not any(one in choice.text for one in params.stop)


def form(choice: Choice, asked: Asked) -> bool:
    wanted = asked.params.structured_outputs
    if wanted is None or choice.finish != "stop" or choice.stop_reason is not None:
        return True
    text = choice.text.removesuffix("<|im_end|>")
    if wanted.kind == "choice":
        return text in (wanted.choice or ())
    if wanted.kind == "grammar":
        return re.fullmatch(r"\[[a-z]{1,3}(,[a-z]{1,3})*\]", text) is not None
    return re.fullmatch(wanted.regex, text) is not None if wanted.regex else isinstance(json.loads(text), dict)


def told(choice: Choice, asked: Asked) -> bool:
    """The likeliest is taken where nothing steers, and all tokens are told of."""
    params = asked.params
    if params.logprobs is None or choice.logprobs is None:
        return params.logprobs is choice.logprobs
    steered = params.steers or params.logit_bias or params.allowed_token_ids or params.bad_word_ids or params.bad_words or params.min_tokens
    free = params.greedy and not steered and params.logprobs > 0
    taken = not free or all(one.top[0].token == one.token for one in choice.logprobs)
    return taken and [one.token for one in choice.logprobs] == [*choice.tokens]


LAWS = (length, end, ids, stop_strings, form, told)


async def one_of_many(front: Frontend, rng: Random, asked: Asked) -> str:
    """Ask, read as whole, as a stream, or as a stream that is left; what is wrong with what comes."""
    for _ in range(rng.randrange(12)):
        await asyncio.sleep(0)
    how: dict[str, Any] = {"priority": rng.randrange(3), "salt": rng.choice(["", "s"])}
    leave_after = rng.randrange(1, 20) if rng.random() < 0.3 else None
    if rng.random() < 0.6:
        read = streamed(front, asked.prompt, asked.params, leave_after, **how)
    else:
        read = whole(front, asked.prompt, asked.params, **how)
    got = await answer(read)
    if isinstance(asked.wanted, str) or isinstance(got, str):
        partly = isinstance(got, Answer) and got.usage is None
        return "" if got == asked.wanted or partly else f"{got}, not {asked.wanted}"
    return difference(got, asked.wanted) if got.usage is not None else not_the_beginning(got, asked.wanted)


def not_the_beginning(part: Answer, wanted: Answer) -> str:
    for one in part.choices:
        other = wanted.choices[one.index]
        if not (other.text.startswith(one.text) and other.tokens[: len(one.tokens)] == one.tokens):
            return f"choice {one.index}: {one}, which {other} does not begin with"
    return ""


async def soak(folder: Path, topology: str, config: Config, seed: int, rounds: int) -> None:
    rng = Random(seed)
    async with front_of(folder, max_model_len=ROOM, enable_prefix_caching=False, num_kv_blocks=100) as front:
        batches = [await alone(front, rng, 12) for _ in range(rounds)]
        assert [found for batch in batches for asked in batch for found in unlawful(asked)] == []
        golden = await whole(front, STORY, GOLDEN)
    async with front_of(folder, topology, max_model_len=ROOM, **config) as front:
        for batch in batches:
            found = await asyncio.gather(*(one_of_many(front, rng, asked) for asked in batch))
            assert [pair for pair in zip(found, batch, strict=True) if pair[0]] == []
            assert await whole(front, STORY, GOLDEN) == golden
            await until(lambda: at_rest(front.client.glance()))  # pyright: ignore[reportAttributeAccessIssue]


@pytest.mark.parametrize("number", range(len(CONFIGS)))
async def test_requests_of_every_kind_at_once(number: int, small: Path) -> None:
    await soak(small, ("inproc", "aio")[number % 2], CONFIGS[number], seed=number, rounds=1)


@pytest.mark.full
@pytest.mark.timeout(600)
@pytest.mark.parametrize("topology", ["inproc", "aio", "mq", "v1"])
@pytest.mark.parametrize("number", range(len(CONFIGS)))
async def test_many_requests_of_every_kind_at_once(number: int, topology: str, small: Path) -> None:
    await soak(small, topology, CONFIGS[number], seed=100 + number, rounds=20)
