"""What cannot start says why and what to do, in seconds: an exception in Python, a line on the command line; nothing stays (C08).

Also: wrong arguments of the command (C50), and a start without standard streams (C76).
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import httpx
import psutil
import pytest
from serving import mqlab_command, running

from mqlab import LLM, ConfigError, ModelError, MqlabError
from mqlab.cli import main

SECONDS = 20
"""A refusal comes well before a large model would have been read; the rest is a slow machine's start of Python."""

Damage = Callable[[Path], object]


def own(folder: Path, name: str) -> Path:
    """A file of the folder that is no longer the model's own."""
    path = folder / name
    path.unlink()
    return path


def truncated(folder: Path) -> None:
    source = (folder / "model.safetensors").resolve()
    with source.open("rb") as whole:
        own(folder, "model.safetensors").write_bytes(whole.read(5_000_000))


def another_architecture(folder: Path) -> None:
    text = (folder / "config.json").read_text().replace("LlamaForCausalLM", "FancyForCausalLM")
    own(folder, "config.json").write_text(text)


def another_size(folder: Path) -> None:
    text = (folder / "config.json").read_text()
    changed = text.replace('"hidden_size": 576', '"hidden_size": 1152')
    assert changed != text
    own(folder, "config.json").write_text(changed)


BROKEN: dict[str, tuple[Damage, str, str]] = {
    "config.json cut": (lambda folder: own(folder, "config.json").write_text('{"model_type": "llama", '), "config.json", "again"),
    "config.json of bytes": (lambda folder: own(folder, "config.json").write_bytes(b"\xb7\x00\xff"), "config.json", "again"),
    "config.json a list": (lambda folder: own(folder, "config.json").write_text("[1]"), "config.json", "again"),
    "no config.json": (lambda folder: own(folder, "config.json"), "config.json", "save_pretrained"),
    "weights cut": (truncated, "model.safetensors", "again"),
    "weights empty": (lambda folder: own(folder, "model.safetensors").touch(), "model.safetensors", "again"),
    "no weights": (lambda folder: own(folder, "model.safetensors"), "model.safetensors", "save_pretrained"),
    "weights a folder": (lambda folder: own(folder, "model.safetensors").mkdir(), "model.safetensors", "save_pretrained"),
    "weights of another size": (another_size, "do not belong together", "config.json"),
    "unknown architecture": (another_architecture, "'FancyForCausalLM'", "LlamaForCausalLM"),
    "no tokenizer": (lambda folder: own(folder, "tokenizer.json"), "tokenizer.json", "save_pretrained"),
    "tokenizer.json cut": (lambda folder: own(folder, "tokenizer.json").write_text("{"), "tokenizer.json", "again"),
}


@pytest.fixture
def folder(model_folder: Path, tmp_path: Path) -> Path:
    """The default model as links, so that a file can be damaged."""
    copy = tmp_path / "model"
    copy.mkdir()
    for path in model_folder.iterdir():
        (copy / path.name).symlink_to(path)
    return copy


def complaint(tmp_path: Path, *arguments: str) -> str:
    """The last line of a ``serve`` that fails as it should."""
    with running(mqlab_command("serve", *arguments, "--port", "0", "--kv-cache-gb", "0.1", "--num-threads", "1"), tmp_path) as process:
        assert process.popen.wait(SECONDS) == 1
        text = process.text()
    assert "Traceback" not in text
    assert "mqlab serving" not in text
    last = text.splitlines()[-1]
    assert last.startswith("mqlab: ")
    return last


ESSENTIAL = {"config.json cut", "no config.json", "weights cut", "no weights", "weights of another size", "unknown architecture"}


@pytest.mark.parametrize("name", [pytest.param(name, marks=[] if name in ESSENTIAL else [pytest.mark.full]) for name in BROKEN])
def test_a_damaged_model_on_the_command_line(folder: Path, tmp_path: Path, name: str) -> None:
    damage, cause, remedy = BROKEN[name]
    damage(folder)
    last = complaint(tmp_path, str(folder))
    assert cause in last
    assert remedy in last


@pytest.mark.parametrize("topology", ["inproc", "v1"])
@pytest.mark.parametrize("name", ["config.json cut", "weights cut", "unknown architecture", "tokenizer.json cut"])
def test_a_damaged_model_in_python(folder: Path, name: str, topology: str) -> None:
    damage, cause, remedy = BROKEN[name]
    damage(folder)
    with pytest.raises(MqlabError) as refusal:
        LLM(str(folder), topology=topology, kv_cache_gb=0.1, num_threads=1)
    assert cause in str(refusal.value)
    assert remedy in str(refusal.value)


@pytest.mark.parametrize("model", ["/no/such/model", "no-such-name", "org/none", "/etc/passwd", "~/nowhere"])
def test_a_model_that_is_not_there(tmp_path: Path, model: str) -> None:
    last = complaint(tmp_path, model)
    assert model in last
    assert "folder" in last
    with pytest.raises(MqlabError, match=model):
        LLM(model)


@pytest.mark.parametrize(
    ("arguments", "cause", "remedy"),
    [
        (["--num-kv-blocks", "1", "--block-size", "1"], "--num-kv-blocks=1", "need 2"),
        (["--kv-cache-gb", "0.000001"], "--kv-cache-gb=1e-06 holds no KV block", "raise it"),
        (["--kv-cache-gb", "100000"], "100000", "lower"),
        (["--max-model-len", "8193"], "--max-model-len=8193", "at most 8192"),
        (["--max-model-len", "1"], "--max-model-len=1 ", "2"),
        (["--start-timeout", "0.5"], "0.5 s", "raise the limit"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_limits_that_leave_no_room(tmp_path: Path, arguments: list[str], cause: str, remedy: str) -> None:
    with running(mqlab_command("serve", "smollm2-135m", "--port", "0", *arguments), tmp_path) as process:
        assert process.popen.wait(SECONDS) in (1, 2)
        text = process.text()
    assert "Traceback" not in text
    line = next(line for line in text.splitlines() if "mqlab: " in line)
    assert cause in line
    assert remedy in line


def test_more_memory_than_there_is_is_refused(tmp_path: Path) -> None:
    """A pool that the machine cannot hold would be accepted by the system now, and be the end of the engine when it fills."""
    last = complaint(tmp_path, "smollm2-135m", "--num-kv-blocks", str(_blocks_beyond_memory()))
    assert "lower --num-kv-blocks" in last


def _blocks_beyond_memory() -> int:
    bytes_per_block = 2 * 30 * 3 * 64 * 4 * 16
    return int(1.5 * psutil.virtual_memory().total) // bytes_per_block


STREAMLESS = """
import os, sys
out = os.dup(1)
sys.stdout = sys.stderr = None
from mqlab import LLM, SamplingParams
with LLM(topology={topology!r}, kv_cache_gb=0.1, num_threads=1) as llm:
    (one,) = llm.generate("The capital of France is", SamplingParams(temperature=0, max_tokens=2))
os.write(out, one.text.encode())
"""


@pytest.mark.parametrize("topology", ["inproc", "v1"])
def test_a_process_without_standard_streams_can_use_it(tmp_path: Path, topology: str) -> None:
    """As under pythonw or a service manager: sys.stdout and sys.stderr are None."""
    command = [sys.executable, "-c", STREAMLESS.format(topology=topology)]
    done = subprocess.run(command, cwd=tmp_path, stdout=subprocess.PIPE, timeout=SECONDS, check=False)
    assert (done.returncode, done.stdout) == (0, b" Paris.")


@pytest.mark.parametrize("topology", ["inproc", "v1"])
def test_a_failed_start_does_not_hold_up_the_exit(folder: Path, tmp_path: Path, topology: str) -> None:
    damage, cause, _ = BROKEN["config.json cut"]
    damage(folder)
    code = f"from mqlab import LLM\nLLM({str(folder)!r}, topology={topology!r})"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=SECONDS, check=False)
    assert done.returncode == 1
    assert cause in done.stderr.splitlines()[-1]


def test_python_gets_the_exceptions_that_are_documented(folder: Path) -> None:
    with pytest.raises(ConfigError, match="nope"):
        LLM(nope=1)
    with pytest.raises(ConfigError, match="topology"):
        LLM(topology="nope")
    with pytest.raises(ConfigError, match="max-num-seqs"):
        LLM(max_num_seqs=0)
    truncated(folder)
    with pytest.raises(ModelError, match=r"model\.safetensors"):
        LLM(str(folder), topology="v1", kv_cache_gb=0.1)


FIRST_TOKEN_S = 15.0


@pytest.mark.usefixtures("model_folder")
def test_the_first_token_comes_soon_after_the_launch(tmp_path: Path) -> None:
    """The default model, fetched and converted before; from the start of the command to the first event of a stream."""
    started = time.monotonic()
    with running(mqlab_command("serve", "smollm2-135m", "--port", "0"), tmp_path) as process:
        body = {"prompt": "The capital of France is", "max_tokens": 2, "temperature": 0, "stream": True}
        with httpx.stream("POST", f"{process.wait_ready().url}/v1/completions", json=body, timeout=20) as response:
            first = next(response.iter_lines())
            took = time.monotonic() - started
        assert "Paris" in first
        assert process.stop(10) == 0
    assert took < FIRST_TOKEN_S


WRONG: list[tuple[list[str], str]] = [
    ([], "COMMAND"),
    (["nope"], "serve"),
    (["serve"], "MODEL"),
    (["serve", ""], "--model="),
    (["serve", "m", "extra"], "extra"),
    (["serve", "m", "--nope"], "--nope"),
    (["serve", "m", "--prt", "1"], "--prt"),
    (["serve", "m", "--port"], "--port"),
    (["serve", "m", "--port", "abc"], "'abc'"),
    (["serve", "m", "--port", "70000"], "65535"),
    (["serve", "m", "--port", "-1"], "65535"),
    (["serve", "m", "--port", "80.5"], "'80.5'"),
    (["serve", "m", "--topology", "nope"], "v1"),
    (["serve", "m", "--codec", "json"], "msgpack"),
    (["serve", "m", "--dtype", "int8"], "bfloat16"),
    (["serve", "m", "--block-size", "0"], "at least 1"),
    (["serve", "m", "--kv-cache-gb", "-1"], "above 0"),
    (["serve", "m", "--kv-cache-gb", "nan"], "finite"),
    (["serve", "m", "--step-limit", "inf"], "finite"),
    (["serve", "m", "--health-interval", "0"], "above 0"),
    (["serve", "m", "--max-num-seqs", "2000"], "--max-num-batched-tokens"),
    (["fetch"], "NAME"),
    (["bench"], "BENCHMARK"),
    (["bench", "nope"], "throughput"),
    (["bench", "throughput", "--num-prompts", "0"], "at least 1"),
    (["bench", "throughput", "--topology", "nope"], "v1"),
]


@pytest.mark.parametrize(("argv", "named"), WRONG, ids=lambda value: " ".join(value) if isinstance(value, list) else "")
def test_wrong_arguments_are_told_briefly(argv: list[str], named: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(argv) == 2
    shown = capsys.readouterr()
    assert not shown.out
    assert shown.err.startswith("mqlab: ")
    assert named in shown.err
    assert len(shown.err.splitlines()) <= 4
