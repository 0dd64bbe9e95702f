"""A prompt larger than the KV pool but not than the context: refused at once, with true numbers, and nobody behind it waits (C11)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import httpx
import pytest
from serving import mqlab_command, running, serving

BLOCK, BLOCKS, CONTEXT = 16, 62, 2000
POOL = BLOCK * BLOCKS
SMALL_POOL: dict[str, Any] = {"max_model_len": CONTEXT, "num_blocks": BLOCKS, "block_size": BLOCK, "device_time": 0.001}


def ids(count: int) -> list[int]:
    return [100 + i % 1000 for i in range(count)]


@pytest.mark.parametrize("topology", ["inproc", "aio", "mq", "v1"])
async def test_what_is_larger_than_the_pool_holds_nobody_up(model_folder: Path, topology: str) -> None:
    async with serving(model_folder, topology, **SMALL_POOL) as served, httpx.AsyncClient(base_url=served.url, timeout=20) as http:
        for stream in (False, True):
            await _larger_than_the_pool(http, stream)
            stats = await served.client.stats()
            assert (stats.running, stats.waiting, stats.blocks_used) == (0, 0, 0)


async def _larger_than_the_pool(http: httpx.AsyncClient, stream: bool) -> None:
    bodies = [{"prompt": ids(size), "max_tokens": 8, "stream": stream} for size in (1200, 5, 5, 5)]
    async with asyncio.timeout(10):
        big, *small = await asyncio.gather(*(http.post("/v1/completions", json=body) for body in bodies))
    assert big.status_code == 400
    error = big.json()["error"]
    assert error["param"] == "prompt"
    for words in ("1200 tokens", f"at most {POOL - 1} fit", f"KV pool {POOL}", f"context holds {CONTEXT}", "--num-kv-blocks"):
        assert words in error["message"]
    assert [answer.status_code for answer in small] == [200] * 3


EDGES = [POOL - BLOCK - 1, POOL - BLOCK, POOL - BLOCK + 1, POOL - 2, POOL - 1, POOL, POOL + 1, CONTEXT - 1, CONTEXT]


async def test_the_edge_of_the_pool(model_folder: Path) -> None:
    async with serving(model_folder, "v1", **SMALL_POOL) as served, httpx.AsyncClient(base_url=served.url, timeout=20) as http:
        for size, max_tokens in product(EDGES, (1, 2, BLOCK, CONTEXT)):
            answer = await http.post("/v1/completions", json={"prompt": ids(size), "max_tokens": max_tokens, "ignore_eos": True})
            stats = await served.client.stats()
            assert (stats.running, stats.waiting, stats.blocks_used) == (0, 0, 0), size
            if size >= POOL:
                assert answer.status_code == 400, size
                assert f"at most {POOL - 1} fit" in answer.json()["error"]["message"]
                continue
            new = min(max_tokens, POOL - size)
            counts = {"prompt_tokens": size, "completion_tokens": new, "total_tokens": size + new}
            assert counts.items() <= answer.json()["usage"].items()
            assert answer.json()["choices"][0]["finish_reason"] == "length", size


TINY_POOL, TINY_CONTEXT = 160, 192


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The default model with so small a pool that few requests fit: where blocks are really scarce."""
    limits = ["--num-kv-blocks", str(TINY_POOL // BLOCK), "--max-model-len", str(TINY_CONTEXT), "--num-threads", "1"]
    with running(mqlab_command("serve", "smollm2-135m", "--port", "0", *limits), tmp_path_factory.mktemp("pool")) as process:
        yield process.wait_ready(90).url
        assert process.stop(10) == 0


async def ask(http: httpx.AsyncClient, prompt: list[int], max_tokens: int) -> dict[str, Any]:
    body = {"prompt": prompt, "max_tokens": max_tokens, "ignore_eos": True, "temperature": 0}
    return (await http.post("/v1/completions", json=body)).json()


async def metric(http: httpx.AsyncClient, name: str) -> float:
    lines = (await http.get("/metrics")).text.splitlines()
    return next(float(line.rpartition(" ")[2]) for line in lines if line.startswith(f"mqlab:{name}{{"))


@pytest.mark.parametrize("size", [TINY_POOL - BLOCK, TINY_POOL - 1, TINY_POOL, TINY_POOL + 1, TINY_CONTEXT - 1])
async def test_the_model_runs_what_fits_the_pool_and_refuses_the_rest(model: str, size: int) -> None:
    async with httpx.AsyncClient(base_url=model, timeout=20) as http:
        big, *small = await asyncio.gather(ask(http, ids(size), TINY_CONTEXT), *(ask(http, ids(5), 3) for _ in range(3)))
        assert [answer["usage"]["completion_tokens"] for answer in small] == [3] * 3
        if size < TINY_POOL:
            assert big["usage"]["total_tokens"] == TINY_POOL
            assert big["choices"][0]["finish_reason"] == "length"
        else:
            assert f"at most {TINY_POOL - 1} fit" in big["error"]["message"]
        assert await metric(http, "kv_cache_usage_perc") == 0


async def test_more_than_the_pool_holds_at_once_all_finish_as_if_alone(model: str) -> None:
    """2.5 of 6 fit at their full length: they preempt one another, which nobody but the counter may notice."""
    length = TINY_POOL // 5
    async with httpx.AsyncClient(base_url=model, timeout=25) as http:
        prompts = [ids(length)[i:] + ids(i) for i in range(6)]
        before = await metric(http, "num_preemptions_total")
        alone = [await ask(http, prompt, length) for prompt in prompts]
        assert await metric(http, "num_preemptions_total") == before
        together = await asyncio.gather(*(ask(http, prompt, length) for prompt in prompts))
        assert await metric(http, "num_preemptions_total") > before
        assert await metric(http, "kv_cache_usage_perc") == 0
    for one, other in zip(alone, together, strict=True):
        counts = {"prompt_tokens": length, "completion_tokens": length, "total_tokens": 2 * length}
        assert counts.items() <= one["usage"].items()
        assert counts.items() <= other["usage"].items()
        assert one["choices"] == other["choices"]
