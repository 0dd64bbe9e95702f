"""vLLM's server on a dummy model: one layer and mqlab's own tokenizer, so that little but its front and its scheduling is left.

Its engine does not answer at once as an echo core does, so its tokens/s are not held against the front's; the CPU time of its API server
for each token is.
"""

from __future__ import annotations

import http.client
import json
import shutil
import socket
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

from mqlab.bars import progress_bar
from mqlab.bench.frontend.targets import Process, Target, children_of, process
from mqlab.errors import BenchError

MAX_STREAMS = 256
"""Requests that it runs at once."""

_MODEL: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 1,
    "num_attention_heads": 1,
    "num_key_value_heads": 1,
    "head_dim": 64,
    "rms_norm_eps": 1e-05,
    "hidden_act": "silu",
    "tie_word_embeddings": True,
    "max_position_embeddings": 2048,
    "torch_dtype": "float32",
}
_TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "generation_config.json")
_START_S = 400.0
_LOOK_EVERY_S = 1.0


@contextmanager
def vllm_server(python: str, tokenizer: Path) -> Iterator[Target]:
    """vLLM's API server, while the block runs; it takes a minute or two to start.

    Args:
        python: one whose environment has vLLM.
        tokenizer: folder of a model that mqlab has, whose tokenizer it gets.

    Raises:
        BenchError: it did not become ready.
    """
    with tempfile.TemporaryDirectory(prefix="mqlab-peer-") as folder:
        _write_model(Path(folder), tokenizer)
        port = _free_port()
        with process(_command(python, folder, port)) as server:
            url = f"http://127.0.0.1:{port}"
            _wait(server, port)
            yield Target(url, {"front": server.pid}, children_of([psutil.Process(server.pid)]))


def _command(python: str, folder: str, port: int) -> list[str]:
    settings = {
        "--model": folder,
        "--load-format": "dummy",
        "--host": "127.0.0.1",
        "--port": str(port),
        "--max-num-seqs": str(MAX_STREAMS),
        "--max-model-len": str(_MODEL["max_position_embeddings"]),
        "--dtype": "float32",
    }
    flat = [part for pair in settings.items() for part in pair]
    return [
        "env",
        "VLLM_CPU_KVCACHE_SPACE=1",
        python,
        "-m",
        "vllm.entrypoints.openai.api_server",
        *flat,
        "--disable-uvicorn-access-log",
    ]


def _write_model(folder: Path, tokenizer: Path) -> None:
    known = json.loads((tokenizer / "config.json").read_text(encoding="utf-8"))
    ids = {name: known[name] for name in ("vocab_size", "bos_token_id", "eos_token_id", "pad_token_id") if name in known}
    (folder / "config.json").write_text(json.dumps(_MODEL | ids), encoding="utf-8")
    for name in _TOKENIZER_FILES:
        if (tokenizer / name).is_file():
            shutil.copy(tokenizer / name, folder / name)


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def _wait(server: Process, port: int) -> None:
    begun = time.monotonic()
    with progress_bar("vLLM's server starts", bar_format="{desc}: {elapsed}") as bar:
        while not _is_healthy(port):
            if server.ended(within=_LOOK_EVERY_S):
                raise server.failed()
            if time.monotonic() - begun > _START_S:
                raise BenchError(f"vLLM's server was not ready within {_START_S:g} s; its last words:\n{server.last_words()}")
            bar.refresh()


def _is_healthy(port: int) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=_LOOK_EVERY_S)
    try:
        connection.request("GET", "/health")
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()
