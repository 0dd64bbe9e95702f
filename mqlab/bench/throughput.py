"""``mqlab bench throughput``: all requests at once, tokens per second of the whole. The workload of vLLM's benchmark of that name (0.33).

Runs at the level of tokens, through the client of the chosen topology: neither HTTP nor, unless asked for, detokenising is in the
numbers. Prompts are random ids that no run has used before, so no cache helps; end tokens are ignored, so every request gives
exactly ``output_len`` tokens. A warm-up of other prompts comes first and is not counted. ``--model echo`` takes a core without a
model, which answers at once.
"""

from __future__ import annotations

import asyncio
import json
import platform
import random
import time
from collections.abc import Callable, Coroutine
from contextlib import aclosing
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import uvloop
from tqdm import tqdm

from mqlab.bars import progress_bar
from mqlab.bench.options import ThroughputConfig
from mqlab.client.base import EngineClient
from mqlab.config import EngineConfig, Settings, Timing
from mqlab.errors import ConfigError
from mqlab.front.frontend import Frontend
from mqlab.models.resolve import resolve
from mqlab.topologies import make_client
from mqlab.types import ModelInfo, Request, SamplingParams
from mqlab.wire.wiring import Wiring

ECHO = "echo"
"""The model name that stands for no model at all: prompts come back, and the layout's own cost is measured."""

_WARM_UP_PROMPTS = 8
_WARM_UP_TOKENS = 8

Generate = Callable[[str, list[int], SamplingParams], Coroutine[Any, Any, int]]
"""Runs one request to its end; gives the number of its new tokens."""


@dataclass(frozen=True)
class Throughput:
    """What a run measured.

    Attributes:
        elapsed_s: from the first request to the end of the last.
    """

    elapsed_s: float
    num_requests: int
    prompt_tokens: int
    output_tokens: int

    @property
    def requests_per_second(self) -> float:
        """Finished requests a second."""
        return self.num_requests / self.elapsed_s

    @property
    def tokens_per_second(self) -> float:
        """Prompt and new tokens a second."""
        return (self.prompt_tokens + self.output_tokens) / self.elapsed_s

    @property
    def output_tokens_per_second(self) -> float:
        """New tokens a second."""
        return self.output_tokens / self.elapsed_s

    def __str__(self) -> str:
        return (
            f"Throughput: {self.requests_per_second:.2f} requests/s, {self.tokens_per_second:.2f} total tokens/s, "
            f"{self.output_tokens_per_second:.2f} output tokens/s"
        )


def main(engine: EngineConfig, workload: ThroughputConfig, timing: Timing, *, wiring: Wiring | None = None) -> int:
    """Run the benchmark, print the result and, where asked for, write it to a file.

    Args:
        wiring: another core than the one that ``engine`` describes.

    Raises:
        ConfigError, ModelError, EngineStartError, EngineDeadError, RequestError.
    """
    if workload.output_json is not None and not Path(workload.output_json).resolve().parent.is_dir():
        raise ConfigError(f"--output-json={workload.output_json!r}: its folder does not exist; make it first")
    wiring = wiring or _wiring(engine, workload, timing)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        result = runner.run(measure(wiring, workload, engine.seed))
    print(f"topology {workload.layout}; {'with' if workload.detokenize else 'without'} detokenising (--detokenize), without HTTP")
    print(result)
    if workload.output_json is not None:
        Path(workload.output_json).write_text(json.dumps(as_record(result, workload, engine), indent=2) + "\n", encoding="utf-8")
    return 0


def _wiring(engine: EngineConfig, workload: ThroughputConfig, timing: Timing) -> Wiring:
    if engine.model != ECHO:
        resolve(engine.model, Settings.read().cache_dir)
        return Wiring.of(engine, codec=workload.codec, timing=timing)
    if workload.detokenize:
        raise ConfigError("--detokenize needs a model with a tokenizer; --model echo has none")
    return Wiring.echo(engine, codec=workload.codec, timing=timing)


async def measure(wiring: Wiring, workload: ThroughputConfig, seed: int) -> Throughput:
    """Start an engine, warm it up, run the workload, close it.

    Args:
        seed: of the prompts.
    """
    async with make_client(workload.layout, wiring) as client:
        _check_fits(workload, client.info)
        generate = _with_text(client) if workload.detokenize else _tokens_only(client)
        draw = random.Random(seed)
        warm_up = [_prompt(draw, workload.input_len, client.info) for _ in range(min(_WARM_UP_PROMPTS, workload.num_prompts))]
        prompts = [_prompt(draw, workload.input_len, client.info) for _ in range(workload.num_prompts)]
        await _run_all(generate, "warm-up", warm_up, min(_WARM_UP_TOKENS, workload.output_len))
        return await _run_all(generate, "requests", prompts, workload.output_len)


def as_record(result: Throughput, workload: ThroughputConfig, engine: EngineConfig) -> dict[str, Any]:
    """The result with what it was measured on; the first five names are vLLM's."""
    return {
        "elapsed_time": result.elapsed_s,
        "num_requests": result.num_requests,
        "total_num_tokens": result.prompt_tokens + result.output_tokens,
        "requests_per_second": result.requests_per_second,
        "tokens_per_second": result.tokens_per_second,
        "output_tokens_per_second": result.output_tokens_per_second,
        "workload": workload.as_record(),
        "engine": asdict(engine),
        "versions": {"mqlab": version("mqlab"), "python": platform.python_version()},
    }


async def _run_all(generate: Generate, name: str, prompts: list[list[int]], output_len: int) -> Throughput:
    params = SamplingParams(temperature=1.0, max_tokens=output_len, ignore_eos=True)
    with progress_bar(name, total=len(prompts), unit="req") as bar:
        start = time.perf_counter()
        tasks = await _all_of([generate(f"{name}-{i}", prompt, params) for i, prompt in enumerate(prompts)], bar)
        elapsed = time.perf_counter() - start
    return Throughput(elapsed, len(prompts), sum(map(len, prompts)), sum(task.result() for task in tasks))


async def _all_of(works: list[Coroutine[Any, Any, int]], bar: tqdm) -> list[asyncio.Task[int]]:
    """Run all to their end; the first error cancels the others: a run with failed requests has no result."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(work) for work in works]
            for task in tasks:
                task.add_done_callback(lambda _: bar.update())
    except ExceptionGroup as errors:
        raise errors.exceptions[0] from None
    return tasks


def _tokens_only(client: EngineClient) -> Generate:
    async def generate(request_id: str, prompt: list[int], params: SamplingParams) -> int:
        count = 0
        async with aclosing(client.generate(Request(request_id, prompt, params))) as deltas:
            async for delta in deltas:
                count += len(delta.tokens)
        return count

    return generate


def _with_text(client: EngineClient) -> Generate:
    front = Frontend.of(client)

    async def generate(request_id: str, prompt: list[int], params: SamplingParams) -> int:
        count = 0
        # Piece by piece, as a server does it; a whole completion would be decoded once, at its end.
        async with aclosing(front.generate(prompt, params, request_id=request_id)) as outputs:
            async for output in outputs:
                count += len(output.tokens)
        return count

    return generate


def _prompt(draw: random.Random, length: int, info: ModelInfo) -> list[int]:
    return [draw.randrange(info.vocab_size) for _ in range(length)]


def _check_fits(workload: ThroughputConfig, info: ModelInfo) -> None:
    room = min(info.max_model_len, info.max_prompt_len + 1)
    if workload.input_len + workload.output_len > room:
        raise ConfigError(
            f"--input-len={workload.input_len} and --output-len={workload.output_len} need {workload.input_len + workload.output_len} "
            f"tokens; {info.name!r} holds {room}: shorten them, or raise --max-model-len or --num-kv-blocks"
        )
