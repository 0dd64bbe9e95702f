"""The runner of a GPU behind the layouts, on this CPU: the answers of the CPU's runner."""

from __future__ import annotations

import asyncio
import json
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from engines import Answer, difference, whole
from serving import mqlab_command, running
from small_model import write_small_model

from mqlab.config import EngineConfig
from mqlab.contract.rig import FAST
from mqlab.front.frontend import Frontend
from mqlab.topologies import TOPOLOGIES, make_client
from mqlab.types import SamplingParams
from mqlab.wire.wiring import Wiring

SMALL = {"num_kv_blocks": 96, "max_num_seqs": 8, "num_threads": 1}
PROMPT = [504, 3575, 282, 4649]
ASKED = [
    (PROMPT, SamplingParams(temperature=0, max_tokens=9, ignore_eos=True)),
    ([28, 198, 30], SamplingParams(temperature=0.9, top_p=0.95, seed=7, max_tokens=9, ignore_eos=True)),
    ([42, 7], SamplingParams(temperature=0, max_tokens=9, logprobs=2, prompt_logprobs=1, repetition_penalty=1.3)),
]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory, model_folder: Path) -> Path:
    return write_small_model(tmp_path_factory.mktemp("model") / "small", model_folder)


async def answers(model: Path, topology: str, **fields: Any) -> list[Answer]:
    engine = EngineConfig(model=str(model), **SMALL, log_stats_interval=0, **fields)
    async with make_client(topology, Wiring.of(engine, timing=FAST)) as client:
        front = Frontend.of(client)
        return await asyncio.gather(*(whole(front, prompt, params) for prompt, params in ASKED))


@pytest.mark.parametrize("topology", [one if one == "thread" else pytest.param(one, marks=pytest.mark.full) for one in TOPOLOGIES])
async def test_every_layout_gives_the_cpu_s_answers(topology: str, model: Path) -> None:
    fields = {"num_scheduler_steps": 3, "async_scheduling": True}
    wanted = await answers(model, "inproc")
    for one, other in zip(await answers(model, topology, attention_backend="torch", **fields), wanted, strict=True):
        assert not difference(one, other)


@pytest.mark.full
def test_a_server_on_the_device_s_runner(model: Path, tmp_path: Path) -> None:
    (wanted, *_) = asyncio.run(answers(model, "inproc"))
    flags = [
        "--attention-backend",
        "torch",
        "--dtype",
        "float32",
        "--cuda-graph-sizes",
        "1",
        "4",
        "--num-kv-blocks",
        "96",
        "--num-threads",
        "1",
    ]
    with running(mqlab_command("serve", str(model), "--port", "0", *flags), tmp_path) as process:
        process.wait_ready()
        body = {"model": model.name, "prompt": PROMPT, "temperature": 0, "max_tokens": 9, "ignore_eos": True}
        asked = urllib.request.Request(f"{process.url}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"})
        with urllib.request.urlopen(asked, timeout=60) as answer:
            assert json.load(answer)["choices"][0]["text"] == wanted.choices[0].text
        assert process.stop(20) == 0
