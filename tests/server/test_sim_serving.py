"""A simulated model goes wherever a model goes: offline, over sockets, over HTTP; and says the same everywhere."""

from __future__ import annotations

import asyncio
import json
import re
import urllib.request
from pathlib import Path

import numpy as np
import pytest
from serving import mqlab_command, running
from simulated import write_device

from mqlab.bench.arm_run import DeviceUse
from mqlab.bench.arrivals import arrival_times
from mqlab.bench.virtual import simulate
from mqlab.config import EngineConfig
from mqlab.front.llm import LLM
from mqlab.topologies import make_client
from mqlab.types import EngineStats, Request, SamplingParams
from mqlab.wire.wiring import Wiring

PARAMS = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True)
SEEDED = SamplingParams(temperature=1.0, seed=5, max_tokens=12, ignore_eos=True)


def test_every_layout_and_policy_says_the_same(tmp_path: Path) -> None:
    model = f"sim:llama-3.1-8b@{write_device(tmp_path, step_ms=0.5)}"
    prompts = ["The first of the prompts.", "Another one, which is rather longer than the first of the prompts was.", "Short."]
    answers = set()
    for topology, options in (
        ("inproc", {}),
        ("mq", {"num_scheduler_steps": 4, "max_num_batched_tokens": 8, "max_num_seqs": 2}),
        ("v1", {"async_scheduling": True, "enable_prefix_caching": False}),
    ):
        with LLM(model, topology=topology, num_kv_blocks=64, **options) as llm:
            completions = llm.generate([*prompts, prompts[0]], [PARAMS, PARAMS, SEEDED, PARAMS], use_tqdm=False)
            answers.add(tuple(completion.choices[0].text for completion in completions))
    (texts,) = answers
    assert texts[0] == texts[3] and len(set(texts)) == 3
    assert all(re.search("[a-z]{2}", text) for text in texts)


def test_it_is_served_over_http(tmp_path: Path) -> None:
    model = f"sim:pythia-70m@{write_device(tmp_path, step_ms=2.0)}"
    with running(mqlab_command("serve", model, "--port", "0"), tmp_path) as process:
        url = process.wait_ready().url
        body = json.dumps({"model": model, "prompt": "Once", "max_tokens": 8, "ignore_eos": True}).encode()
        request = urllib.request.Request(f"{url}/v1/completions", body, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=30) as response:
            answer = json.load(response)
        with urllib.request.urlopen(f"{url}/metrics", timeout=30) as response:
            page = response.read().decode()
        process.stop(10)
    assert answer["usage"]["completion_tokens"] == 8 and answer["choices"][0]["text"]
    assert re.search(r"^mqlab:device_seconds_total\{.*\} 0.016$", page, re.MULTILINE), "8 steps of 2 ms"
    assert "mqlab:oversleep_seconds_total" in page


@pytest.mark.full
async def test_real_time_takes_as_long_as_virtual_time() -> None:
    engine = EngineConfig(model="sim:llama-3.1-8b@a40", max_num_seqs=32)
    times = arrival_times(30, 3.0)
    requests = [
        Request(f"r{i}", list(range(3 + i, 103 + i)), SamplingParams(temperature=0.0, max_tokens=40, ignore_eos=True)) for i in range(30)
    ]
    virtual = simulate(engine, requests, list(times))
    loop = asyncio.get_running_loop()

    async def run(request: Request, at: float, start: float) -> tuple[float, float]:
        due = asyncio.Event()
        loop.call_at(start + at, due.set)
        await due.wait()
        stamps = []
        async for _ in client.generate(request):
            stamps.append(loop.time())
        return stamps[0] - start - at, (stamps[-1] - stamps[0]) / 39

    async with make_client("v1", Wiring.of(engine)) as client:
        start = loop.time() + 0.1
        got = await asyncio.gather(*(run(one, at, start) for one, at in zip(requests, times, strict=True)))
        stats = await client.stats()
    device = DeviceUse.between(EngineStats(), stats)
    late = device.oversleep_s / device.busy_s
    # Beside the device there are the layout and the host, which a first token feels more, and what a busy machine oversleeps.
    for number, (name, allowed) in enumerate((("ttft", 0.25), ("tpot", 0.05))):
        wanted = float(np.median([getattr(one, name) for one in virtual.requests]))
        assert np.median(got, axis=0)[number] == pytest.approx(wanted, rel=allowed + late), (name, device)
