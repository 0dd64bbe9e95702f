"""The commands of ``%mqlab`` that measure and look: what they bind, show, write and refuse."""

from __future__ import annotations

import json
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
from IPython.core.error import UsageError
from IPython.core.interactiveshell import InteractiveShell

from mqlab.bench.comparison import Comparison
from mqlab.bench.serve_result import ServeResult
from mqlab.bench.throughput_result import ThroughputResult
from mqlab.contract.waiting import until_sync
from mqlab.errors import BenchError, ConfigError, ModelError, TraceError
from mqlab.lab.opening import Saved
from mqlab.record.capture import Capture
from mqlab.record.trace import Trace

Magic = Callable[[str], str]
TINY = "--num-prompts 4 --input-len 4 --output-len 4"
ECHO = f"--model echo {TINY}"
ARMS = f"--topologies inproc,mq {TINY} --rounds 3"


@pytest.fixture(scope="module")
def shell(shared_shell: InteractiveShell) -> InteractiveShell:
    """With ``lab``, over mq, and ``silent``, over inproc and without a recording; both have answered once."""
    for line in ("serve smollm2-135m --quiet", "serve smollm2-135m --topology inproc --no-record -o silent --quiet"):
        shared_shell.run_line_magic("mqlab", line)
    for name in ("lab", "silent"):
        shared_shell.user_ns[name].generate_sync("Hello there world", max_tokens=3)
    until_sync(lambda: "1 finished" in repr(shared_shell.user_ns["lab"].trace()), interval=0.1)  # the probes take a moment
    return shared_shell


@pytest.mark.parametrize(
    ("line", "name", "kind", "shown"),
    [
        (f"bench throughput {ECHO}", "result", ThroughputResult, "Throughput: "),
        (
            "bench latency --model echo --batch-size 2 --num-iters 2 --num-iters-warmup 1 --input-len 4 --output-len 4 -o l",
            "l",
            None,
            "Avg",
        ),
        ("bench scheduler --running 2 --waiting 0 --steps 2 --num-iters 1 -o s", "s", None, "schedule µs"),
        ("bench capacity --model sim:pythia-70m@h100 --rates inf --num-prompts 2 --output-len 2 -o c", "c", None, "output tokens/s"),
        ("trace", "trace", Trace, "1 finished"),
        (f"bench lab {TINY} --rate 200 -o r", "r", ServeResult, "Successful requests:                         4"),
        (f"bench silent {TINY}", "result", ServeResult, "Successful requests:                         4"),
        pytest.param(f"compare echo {ARMS}", "comparison", Comparison, "all arms gave the same tokens", marks=pytest.mark.full),
        pytest.param("profile --seconds 1 --idle", "capture", Capture, "Capture(front, engine", marks=pytest.mark.full),
        ("trace lab -o t", "t", Trace, "Trace"),
        ("metrics -o m", "m", None, "lab:"),
        ("metrics silent -o m", "m", None, "no probes"),
        ("ps -o p", "p", None, "lab "),
    ],
)
def test_what_a_command_makes_is_shown_and_bound(
    shell: InteractiveShell, magic: Magic, tmp_path: Path, line: str, name: str, kind: type | None, shown: str
) -> None:
    shell.user_ns.pop(name, None)
    assert shown in magic(line + (f" --folder {tmp_path}" if line.startswith("profile") else ""))
    made = shell.user_ns[name]
    assert kind is None or isinstance(made, kind)
    assert made._repr_html_().startswith("<") and repr(made)


@pytest.mark.parametrize("line", [f"bench lab {TINY}", "trace", "metrics", "ps -o p"])
def test_quiet_shows_nothing(shell: InteractiveShell, capfd: pytest.CaptureFixture[str], line: str) -> None:
    shell.run_line_magic("mqlab", f"{line} --quiet")
    assert capfd.readouterr() == ("", "")


def test_results_are_written_where_asked_and_opened_again(
    shell: InteractiveShell, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "result.json"
    for line, kind in ((f"bench throughput {ECHO}", Saved), (f"compare echo {ARMS}", Comparison)):
        shell.run_line_magic("mqlab", f"{line} --quiet --output-json {path}")
        shell.run_line_magic("mqlab", f"open {path} --quiet")
        assert isinstance(shell.user_ns["opened"], kind)
    assert capfd.readouterr() == ("", "")


def test_loads_are_written_where_asked(magic: Magic, tmp_path: Path) -> None:
    assert "written to" in magic(f"bench lab {TINY} --quiet --save-result --result-dir {tmp_path / 'new'} --result-filename r.json")
    assert json.loads((tmp_path / "new" / "r.json").read_text())["completed"] == 4
    with pytest.raises(ConfigError, match="its folder does not exist"):
        magic(f"bench throughput {ECHO} --output-json {tmp_path}/missing/result.json")


def test_traces_are_saved_and_exported(magic: Magic, tmp_path: Path) -> None:
    printed = magic(f"trace --quiet --save {tmp_path / 'run'} --export {tmp_path / 'run.json'}")
    assert f"saved as {tmp_path / 'run.mqtrace'}" in printed and "ui.perfetto.dev" in printed
    assert json.loads((tmp_path / "run.json").read_text())["traceEvents"]
    assert magic(f"trace {tmp_path / 'run.mqtrace'}") == magic(f"open {tmp_path / 'run.mqtrace'}")
    with pytest.raises(TraceError, match="exists"):
        magic(f"trace --save {tmp_path / 'run'}")


def test_a_stopped_session_still_has_its_trace(shell: InteractiveShell, magic: Magic) -> None:
    magic("serve smollm2-135m --max-num-seqs 4 -o short --quiet")
    shell.user_ns["short"].generate_sync("Hello", max_tokens=1)
    magic("stop short")
    assert "1 finished" in magic("trace short")
    with pytest.raises(ConfigError, match="no session 'short'"):
        magic("metrics short")


@pytest.mark.parametrize(
    ("line", "error", "words"),
    [
        ("bench throughput --model nosuch", ModelError, "nosuch"),
        ("bench throughput --model echo --num-prompts 1 --input-len 10k", ConfigError, "holds 8192"),
        ("bench latency --model echo --batch-size 0", ConfigError, "batch-size=0"),
        ("bench nosuch", ConfigError, "no session 'nosuch'"),
        ("bench lab --rate -1", ConfigError, "rate"),
        ("bench http://127.0.0.1:1", ConfigError, "start a server there"),
        (f"bench lab {TINY} --quiet --endpoint /nowhere", BenchError, "no request succeeded"),
        ("compare nosuch", ModelError, "nosuch"),
        ("compare echo --topologies inproc,nosuch", ConfigError, "'nosuch' is unknown"),
        ("compare echo --rounds 1", ConfigError, "rounds"),
        ("profile nosuch", ConfigError, "no session 'nosuch'"),
        ("profile 99999999", ConfigError, "no engine '99999999'"),
        ("profile --seconds 0", ConfigError, "seconds=0"),
        ("metrics nosuch", ConfigError, "there is lab, silent"),
        ("trace silent", ConfigError, "--no-record"),
        ("trace /no/such/folder", ConfigError, "nor is there a file"),
        ("open /no/such/folder", ConfigError, "does not exist"),
        ("open", ConfigError, "PATH"),
        ("trace -o 1st", ConfigError, "'1st' is not a name"),
    ],
)
def test_failures_are_ordinary_and_leave_everything(shell: InteractiveShell, line: str, error: type[Exception], words: str) -> None:
    result = shell.run_cell(f"%mqlab {line}")
    assert isinstance(result.error_in_exec, error) and not isinstance(result.error_in_exec, UsageError)
    assert words in str(result.error_in_exec)
    assert not shell.user_ns["lab"].stopped and not shell.user_ns["silent"].stopped


EXPLAINED = (
    "serve|ps|stop|attach|bench|bench throughput|bench latency|bench scheduler|bench serve|bench lab"
    "|compare|profile|metrics|trace|open|fetch"
)


@pytest.mark.parametrize("command", EXPLAINED.split("|"))
def test_every_command_explains_itself(shell: InteractiveShell, magic: Magic, command: str) -> None:
    assert f"usage: mqlab {command.replace('lab', 'serve')}" in magic(f"{command} --help")
    assert shell.run_cell(f"%mqlab {command} --help").success


@pytest.mark.parametrize("ask", ["%mqlab?", "%%mqlab?", "%mqlab --help"])
def test_help_of_the_magic(shell: InteractiveShell, capsys: pytest.CaptureFixture[str], ask: str) -> None:
    shell.run_cell(ask)
    shown = capsys.readouterr().out
    assert "mqlab COMMAND [options]" in shown and "compare" in shown and "attach" in shown


@pytest.mark.parametrize(
    ("cell", "words"),
    [
        ("x = 1\n%%mqlab profile", "first line"),
        ("%%mqlab serve smollm2-135m\npass", "only profile takes a cell"),
        ("%%mqlab\npass", "only profile takes a cell"),
        ("%%mqlab profile --nope\npass", "--nope"),
        ("%%mqlab profile -o 1st\npass", "'1st'"),
        ("get_ipython().run_cell_magic('mqlab', 'profile', 'pass')", "begins with it"),
    ],
)
def test_cells_that_cannot_be(shell: InteractiveShell, cell: str, words: str) -> None:
    result = shell.run_cell(cell)
    assert isinstance(result.error_in_exec, ConfigError) and words in str(result.error_in_exec)


@contextmanager
def interrupted(children: int) -> Iterator[None]:
    """Interrupt the block once so many more processes run; at its end none of them does."""
    before = set(psutil.Process().children(recursive=True))

    def more() -> set[psutil.Process]:
        return set(psutil.Process().children(recursive=True)) - before

    def interrupt() -> None:
        until_sync(lambda: len(more()) >= children, timeout=20)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    interrupter = threading.Thread(target=interrupt)
    interrupter.start()
    with pytest.raises(KeyboardInterrupt):
        yield
    interrupter.join()
    until_sync(lambda: not more(), timeout=10)


@pytest.mark.parametrize(
    ("line", "children"),
    [
        ("bench throughput --model echo --topology mq --num-prompts 1m --input-len 8 --output-len 1k --quiet", 2),
        ("bench lab --num-prompts 10k --rate 1 --input-len 4 --output-len 4 --quiet", 1),
        ("compare echo --topologies inproc,mq --num-prompts 10k --rounds 1k --quiet", 4),
    ],
    ids=["bench", "load", "compare"],
)
def test_an_interrupt_leaves_no_process(shell: InteractiveShell, magic: Magic, line: str, children: int) -> None:
    shell.user_ns.pop("result", None)
    with interrupted(children):
        magic(line)
    assert "result" not in shell.user_ns
    assert shell.user_ns["lab"].generate_sync("Hello there world", max_tokens=3).text == "Hello there world"
