"""The process of the client ends, in every way a process can: no engine, no folder outlives it."""

from __future__ import annotations

import pickle
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

from mqlab.config import Settings
from mqlab.contract.processes import ended, stopped
from mqlab.contract.rig import SEEN_S, Rig, assert_serves, needs
from mqlab.contract.waiting import until

# Imports are the script's own business, so that nothing of the test's world leaks into it.
SCRIPT = """
import asyncio, pickle, sys
make, wiring, scene = pickle.loads(bytes.fromhex(sys.argv[1]))
print("top level", flush=True)
{prelude}
async def main():
    from mqlab.types import Request, SamplingParams
    client = make(wiring)
    if scene == "loading":
        start = asyncio.create_task(client.start())
        while not any("mqlab.wire.boot" in " ".join(child.cmdline()) for child in psutil.Process().children()):
            await asyncio.sleep(0)
        print("ready", flush=True)
        await start
    await client.start()
    streams = [client.generate(Request(f"r{{i}}", [3, 4], SamplingParams(max_tokens=None, ignore_eos=True))) for i in range(4)]
    if scene == "stuck":
        streams.append(asyncio.create_task(anext(streams.pop())))
        while (await client.check()).phase != "step":
            await asyncio.sleep(0)
    if scene == "streams":
        await asyncio.gather(*(anext(stream) for stream in streams))
    print("ready", flush=True)
    {ending}
asyncio.run(main())
"""

WAIT = "await asyncio.Event().wait()"
PSUTIL = "import psutil"


def script(prelude: str, ending: str) -> str:
    """A program that starts an engine and ends in a way of its own."""
    return SCRIPT.format(prelude=prelude, ending=ending)


@contextmanager
def launched(rig: Rig, source: str, scene: str, *, from_file: bool = False, **faults: Any) -> Iterator[subprocess.Popen[str]]:
    """The program as a process, its engine running, in the scene "loading" being launched, in the scene "stuck" in a step."""
    argument = pickle.dumps((rig.make, rig.wiring(echo={"device_time": 0.002}, **faults), scene)).hex()
    with tempfile.TemporaryDirectory() as folder:
        how = ["-c", source]
        if from_file:
            path = Path(folder, "script.py")
            path.write_text(source)
            how = [str(path)]
        command = [sys.executable, "-W", "error", *how, argument]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=folder)
        try:
            yield process
        finally:
            process.kill()
            process.communicate()


def read_until_ready(process: subprocess.Popen[str]) -> list[str]:
    """What it printed before it was ready."""
    assert process.stdout is not None
    lines: list[str] = []
    while (line := process.stdout.readline().strip()) != "ready":
        assert line, f"it ended with {process.wait()}: {process.communicate()[1]}"
        lines.append(line)
    return lines


async def assert_all_gone(engines: list[psutil.Process], pid: int) -> None:
    """Within the time in which death must be noticed."""
    await until(lambda: all(map(ended, engines)), timeout=SEEN_S)
    await until(lambda: not _folders(pid), timeout=1)


def _folders(pid: int) -> list[Path]:
    return list(Settings.read().runtime_dir.glob(f"mqlab-{pid}-*"))


async def _signalled(rig: Rig, scene: str, how: int, **faults: Any) -> None:
    with launched(rig, script(PSUTIL, WAIT), scene, **faults) as process:
        read_until_ready(process)
        engines = psutil.Process(process.pid).children()
        assert len(engines) == rig.children
        assert len(_folders(process.pid)) == rig.own_process
        process.send_signal(how)
        process.communicate()
        await assert_all_gone(engines, process.pid)


@needs("own_process")
async def check_parent_killed_while_idle(rig: Rig) -> None:
    for _ in range(4):
        await _signalled(rig, "idle", signal.SIGKILL)


@needs("own_process")
async def check_parent_killed_while_streams_run(rig: Rig) -> None:
    for _ in range(4):
        await _signalled(rig, "streams", signal.SIGKILL)


@needs("own_process")
async def check_parent_killed_while_loading(rig: Rig) -> None:
    for _ in range(2):
        await _signalled(rig, "loading", signal.SIGKILL, slow_build=60)


@needs("own_process")
async def check_parent_killed_beside_a_stuck_engine(rig: Rig) -> None:
    await _signalled(rig, "stuck", signal.SIGKILL, slow_step=60)


@needs("own_process")
async def check_parent_killed_beside_an_engine_that_holds_the_gil(rig: Rig) -> None:
    """None of its threads can run, so the kernel's signal ends it; its folder stays, until the next start sweeps it, or a helper goes."""
    with launched(rig, script(PSUTIL, WAIT), "stuck", hang_step=1, hold_gil=True) as process:
        read_until_ready(process)
        engines = psutil.Process(process.pid).children()
        assert len(engines) == rig.children
        process.kill()
        process.communicate()
        await until(lambda: all(map(ended, engines)), timeout=SEEN_S)
    assert _folders(process.pid) or rig.helpers, "a thread of the engine ran: the lock was not held"
    async with rig.client() as client:
        assert not _folders(process.pid)
        await assert_serves(client)


@needs("own_process")
async def check_parent_killed_beside_a_stopped_engine(rig: Rig) -> None:
    with launched(rig, script(PSUTIL, WAIT), "idle") as process:
        read_until_ready(process)
        engines = psutil.Process(process.pid).children()
        for engine in engines:
            engine.suspend()
        # The kernel continues what it finds stopped when its parent dies, not what is about to stop.
        await until(lambda: all(map(stopped, engines)))
        process.kill()
        process.communicate()
        await assert_all_gone(engines, process.pid)


@needs("own_process")
async def check_parent_terminated(rig: Rig) -> None:
    await _signalled(rig, "streams", signal.SIGTERM)


@needs("own_process")
async def check_parent_interrupted(rig: Rig) -> None:
    await _signalled(rig, "streams", signal.SIGINT)


async def _ends_itself(rig: Rig, scene: str, ending: str, code: int, error: str = "") -> None:
    with launched(rig, script("", ending), scene) as process:
        lines = read_until_ready(process)
        assert lines == ["top level"]
        _, errors = process.communicate(timeout=20)
        assert process.returncode == code, errors
        assert (error in errors) if error else not errors
        assert not _folders(process.pid)


async def check_exit_without_close(rig: Rig) -> None:
    await _ends_itself(rig, "idle", "return", 0)


async def check_exit_without_close_with_streams(rig: Rig) -> None:
    await _ends_itself(rig, "streams", "return", 0)


async def check_exit_by_error_without_close(rig: Rig) -> None:
    await _ends_itself(rig, "streams", "1 / 0", 1, "ZeroDivisionError")


async def check_exit_of_a_global_client(rig: Rig) -> None:
    """The client outlives its loop, until the interpreter goes."""
    await _ends_itself(rig, "idle", "globals()['kept'] = client", 0)


TOKENIZER_AND_THREADS = """
from concurrent.futures import ThreadPoolExecutor
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
words = Tokenizer(WordLevel({"a": 0, "b": 1}, unk_token="a"))
words.encode_batch(["a", "b"] * 500)
pool = ThreadPoolExecutor(4)
list(pool.map(abs, range(100)))
"""

NO_FILENO = """
class View:
    def write(self, text): seen.append(text)
    def flush(self): pass
seen = []
plain = sys.stdout
sys.stdout = sys.stderr = View()
def print(text, flush): plain.write(text + "\\n"); plain.flush()
"""


async def _starts_from(rig: Rig, prelude: str, from_file: bool) -> None:
    ending = "assert (await client.check()).ok; await client.close(); return"
    with launched(rig, script(prelude, ending), "streams", from_file=from_file) as process:
        assert read_until_ready(process) == ["top level"], "printed once: the engine does not run this file again"
        out, errors = process.communicate(timeout=20)
        assert (process.returncode, out, errors) == (0, "", "")


@needs("own_process")
async def check_start_from_a_script_without_guard(rig: Rig) -> None:
    await _starts_from(rig, "", from_file=True)


@needs("own_process")
async def check_start_from_a_command(rig: Rig) -> None:
    await _starts_from(rig, "", from_file=False)


@needs("own_process")
async def check_start_after_tokenizers_and_threads(rig: Rig) -> None:
    await _starts_from(rig, TOKENIZER_AND_THREADS, from_file=True)


async def check_start_with_streams_that_have_no_fileno(rig: Rig) -> None:
    await _starts_from(rig, NO_FILENO, from_file=True)
