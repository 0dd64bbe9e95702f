"""The load test of the documents that the layouts come from: ten thousand requests at once over HTTP, none lost, every token right."""

from __future__ import annotations

import re
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
from manystreams import Answer, ManyStreams
from serving import Process, running

from mqlab.contract.cases import rig_of
from mqlab.contract.waiting import until
from mqlab.text.tokenizer import Tokenizer
from mqlab.topologies import TOPOLOGIES

MANY = 10_000
IDLE = {"running": 0.0, "waiting": 0.0}
ROUNDS = 2
GROWTH = 1.4
"""Memory of front and engine after the second round, by that after the first. Allocators' pools fill until the third; requests that were
kept would double it."""

HELPERS = Path(__file__).parent.parent / "helpers"


@contextmanager
def gated_server(model_folder: Path, folder: Path, topology: str, count: int) -> Iterator[Process]:
    """An echo engine behind HTTP, whose core waits until ``count`` requests are in it."""
    code = f"""
import sys
from dataclasses import replace
from pathlib import Path
sys.path.insert(0, {str(HELPERS)!r})
from mqlab.config import EngineConfig, ServerConfig, Timing
from mqlab.server.launch import serve
from mqlab.wire.spec import Spec
from serving import echo_wiring
wiring = echo_wiring(Path({str(model_folder)!r}), Timing(), max_num_seqs={count}, num_blocks={count * 4})
wiring = replace(wiring, wraps=(Spec("gated:Gated", {{"count": {count}}}),))
sys.exit(serve(EngineConfig(), ServerConfig(port=0, topology={topology!r}, record=False), Timing(), wiring=wiring))
"""
    with running([sys.executable, "-c", code], folder) as process:
        yield process.wait_ready()
        assert process.stop(20) == 0


def bodies(tokenizer: Tokenizer, count: int) -> tuple[list[dict[str, Any]], list[Answer]]:
    """Requests with prompts of their own, and their answers: the prompt, again and again."""
    prompts = [f"{index} of {count} asks" for index in range(count)]
    lengths = [len(tokenizer.encode(prompt)) for prompt in prompts]
    asked = [{"prompt": prompt, "max_tokens": 2 * length, "ignore_eos": True} for prompt, length in zip(prompts, lengths, strict=True)]
    return asked, [Answer(200, prompt * 2, "length") for prompt in prompts]


def open_requests(url: str) -> dict[str, float]:
    """What runs and what waits, as the server's own page has it."""
    with urllib.request.urlopen(f"{url}/metrics", timeout=20) as page:
        found = re.findall(r"^mqlab:num_requests_(running|waiting){\S* (\S+)$", page.read().decode(), re.MULTILINE)
    return {name: float(value) for name, value in found}


def processes(server: Process) -> list[psutil.Process]:
    """The front and all below it."""
    front = psutil.Process(server.popen.pid)
    return [front, *front.children(recursive=True)]


@pytest.mark.parametrize(
    ("topology", "count"),
    [("v1", 300), *(pytest.param(name, MANY, marks=[pytest.mark.full, pytest.mark.timeout(600)]) for name in TOPOLOGIES)],
)
async def test_all_at_once_get_their_own_answers_and_everything_is_given_back(
    model_folder: Path, tmp_path: Path, topology: str, count: int
) -> None:
    count = min(count, rig_of(topology).streams or count)  # a layout with a socket for each has so many at once
    asked, wanted = bodies(Tokenizer.load(model_folder), count)
    with gated_server(model_folder, tmp_path, topology, count) as server:
        assert open_requests(server.url) == IDLE  # the first connection of all opens a file that stays
        before = [one.num_fds() for one in processes(server)]
        held = []
        for _ in range(ROUNDS):
            streams = ManyStreams(server.url)
            answers = await streams.ask(asked)
            assert streams.most == count, "the core began when all were there"
            assert [index for index, (got, due) in enumerate(zip(answers, wanted, strict=True)) if got != due] == []
            await until(lambda: open_requests(server.url) == IDLE)
            await until(lambda: all(one.num_fds() <= was for one, was in zip(processes(server), before, strict=True)), timeout=20)
            held.append(sum(one.memory_info().rss for one in processes(server)))
    assert held[1] <= GROWTH * held[0]
