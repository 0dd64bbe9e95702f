"""``%mqlab`` in a real shell."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable
from typing import Any

import psutil
import pytest
from IPython.core.error import UsageError
from IPython.core.interactiveshell import InteractiveShell

from mqlab.config import EngineConfig, ServerConfig, Timing
from mqlab.contract.waiting import until_sync
from mqlab.errors import ConfigError, ModelError
from mqlab.lab.registry import SESSIONS, Registry, Served
from mqlab.lab.session import Session
from mqlab.types import SamplingParams

Magic = Callable[[str], str]
Start = Callable[..., Session]


def test_serve_binds_a_session(shell: InteractiveShell, magic: Magic) -> None:
    printed = magic("serve smollm2-135m --topology v1 -o here")
    here = shell.user_ns["here"]
    assert isinstance(here, Session) and here.topology == "v1" and here.generate_sync("Hello", max_tokens=1).text == "Hello"
    assert f"engine pid {here.info.pid}" in printed and printed.startswith("here = ")
    assert magic("serve smollm2-135m --quiet") == ""
    assert shell.user_ns["lab"].topology == "mq"


def test_the_same_again_is_reused_and_says_so(shell: InteractiveShell, magic: Magic) -> None:
    magic("serve smollm2-135m")
    first = shell.user_ns["lab"]
    printed = magic("serve smollm2-135m -o again")
    assert shell.user_ns["again"] is first
    assert "already running" in printed and str(first.info.pid) in printed and "mq" in printed
    first.stop()
    magic("serve smollm2-135m")
    assert shell.user_ns["lab"] is not first


def test_a_busy_session_is_reused(start: Start) -> None:
    """A long prompt on a CPU is a long step, even under inproc no reason to look away."""
    lab, registry = start("inproc", device_time=1.0), Registry()
    served = Served(EngineConfig(), ServerConfig(topology="inproc"), Timing())
    registry.add("lab", lab, served)
    answer = lab._running().thread.submit(lab._running().front.complete("Hello", SamplingParams(max_tokens=1)))
    until_sync(lambda: lab.health().phase == "step")
    assert lab.state() == ("ready", "") and registry.find(served) is lab
    assert answer.result().text == "Hello" and lab.health().ok


def test_something_else_of_that_name_replaces_it(shell: InteractiveShell, magic: Magic) -> None:
    magic("serve smollm2-135m")
    first = shell.user_ns["lab"]
    printed = magic("serve smollm2-135m --max-num-seqs 8")
    assert "stopped" in printed and "as well" not in printed
    assert first.stopped and not shell.user_ns["lab"].stopped


def test_a_replaced_session_names_who_else_had_it(shell: InteractiveShell, magic: Magic) -> None:
    for name in ("lab", "again", "more"):
        magic(f"serve smollm2-135m -o {name}")
    assert "which was 'again' and 'more' as well, was stopped" in magic("serve smollm2-135m --max-num-seqs 8")
    assert shell.user_ns["again"].stopped


def test_a_dead_engine_is_not_reused(shell: InteractiveShell, magic: Magic) -> None:
    magic("serve smollm2-135m")
    first = shell.user_ns["lab"]
    psutil.Process(first.info.pid).kill()
    until_sync(lambda: not first.health().ok)
    magic("serve smollm2-135m")
    assert shell.user_ns["lab"].health().ok


def test_ps_and_stop(shell: InteractiveShell, magic: Magic) -> None:
    assert "no session" in magic("ps")
    magic("serve smollm2-135m")
    magic("serve smollm2-135m --topology v1 -o other")
    listed = magic("ps").splitlines()
    assert [line.split()[0] for line in listed] == ["lab", "other"]
    assert magic("stop other") == "other stopped\n"
    assert shell.user_ns["other"].stopped and not shell.user_ns["lab"].stopped
    magic("stop --all")
    assert shell.user_ns["lab"].stopped and "no session" in magic("ps")


@pytest.mark.parametrize("line", ["--help", "serve --help", "ps --help", "stop -h"])
def test_help_succeeds(magic: Magic, line: str) -> None:
    assert "usage: mqlab" in magic(line)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("", "COMMAND"),
        ("serve --nope", "usage: mqlab serve MODEL"),
        ("serve", "MODEL"),
        ("serve smollm2-135m --nope", "--nope"),
        ("serve smollm2-135m --port abc", "abc"),
        ("serve smollm2-135m --port 70000", "70000"),
        ("serve smollm2-135m --port 9000", "opens its HTTP port when asked for"),
        ("serve smollm2-135m --chat-template x", "--chat-template: a notebook session"),
        ("serve smollm2-135m --topology ring", "ring"),
        ("serve smollm2-135m -o 1st", "1st"),
        ("serve smollm2-135m -o class", "class"),
        ("serve smollm2-135m --max-num-seqs 0", "max-num-seqs=0"),
        ("serve 'smollm2-135m", "quote"),
        ("launch", "launch"),
        ("stop", "no session 'lab'"),
        ("stop nothing", "no session 'nothing'"),
        ("stop lab --all", "not both"),
    ],
)
def test_wrong_arguments_are_ordinary_errors(shell: InteractiveShell, line: str, words: str) -> None:
    before = psutil.Process().children()
    with pytest.raises(ConfigError, match=words):
        shell.run_line_magic("mqlab", line)
    result = shell.run_cell(f"%mqlab {line}")
    assert isinstance(result.error_in_exec, ConfigError) and not isinstance(result.error_in_exec, UsageError)
    assert shell.run_cell("1 + 1").result == 2
    assert psutil.Process().children() == before and not SESSIONS.live()


def test_failed_start_raises_and_binds_nothing(shell: InteractiveShell, magic: Magic) -> None:
    with pytest.raises(ConfigError, match="no_such_factory"):
        magic("serve smollm2-135m --max-num-seqs 1")
    assert "lab" not in shell.user_ns and not SESSIONS.live()


def test_wrong_model_costs_no_session(shell: InteractiveShell, magic: Magic) -> None:
    magic("serve smollm2-135m")
    with pytest.raises(ModelError, match="/no/such/folder"):
        magic("serve /no/such/folder")
    assert not shell.user_ns["lab"].stopped


class Plain:
    """A stream that can only write."""

    def write(self, text: str) -> int:
        """As a file's."""
        return len(text)

    def flush(self) -> None:
        """As a file's."""


@pytest.mark.parametrize("stream", [Plain, io.StringIO])
def test_streams_without_a_file_number(shell: InteractiveShell, monkeypatch: pytest.MonkeyPatch, stream: Callable[[], Any]) -> None:
    monkeypatch.setattr(sys, "stdout", stream())
    monkeypatch.setattr(sys, "stderr", stream())
    for line in ("serve smollm2-135m", "serve smollm2-135m", "ps", "--help"):
        shell.run_line_magic("mqlab", line)
    assert shell.user_ns["lab"].generate_sync("Hello", max_tokens=1).text == "Hello"
    shell.run_line_magic("mqlab", "stop lab")


def test_deleting_the_variable_stops_the_engine(shell: InteractiveShell, magic: Magic) -> None:
    magic("serve smollm2-135m")
    pid = shell.user_ns["lab"].info.pid
    shell.run_cell("del lab")
    assert not psutil.pid_exists(pid) and "no session" in magic("ps")


def test_a_session_that_was_shown_is_also_in_the_history(shell: InteractiveShell, magic: Magic) -> None:
    magic("serve smollm2-135m")
    pid = shell.user_ns["lab"].info.pid
    shell.run_cell("lab", store_history=True)
    shell.run_cell("%xdel lab")
    assert not psutil.pid_exists(pid) and "no session" in magic("ps")
