"""Help in depths: what most need, everything, or what a word is about."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from mqlab import cli

Help = Callable[..., str]


@pytest.fixture
def asked(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Help:
    """What a command prints that succeeds, in a terminal of so many columns."""

    def asked(*argv: str, columns: int = 100) -> str:
        monkeypatch.setenv("COLUMNS", str(columns))
        assert cli.main(argv) == 0
        shown = capsys.readouterr()
        assert shown.err == ""
        return shown.out

    return asked


def test_short_help_has_the_usual_options_by_group_and_says_how_to_see_the_rest(asked: Help) -> None:
    short, whole = asked("serve", "--help"), asked("serve", "--help=all")
    for usual in (
        "MODEL",
        "--topology",
        "--max-num-seqs",
        "--api-key",
        "Scheduling and prefix cache:",
        "--disable-frontend-multiprocessing",
    ):
        assert usual in short and usual in whole
    for rare in ("--max-unsent-kb", "--prompt-lookup-min", "--stopped-limit", "--ssl-certfile"):
        assert rare not in short and rare in whole
    assert "--help=all" in short and "Groups: The core · Scheduling and prefix cache ·" in short
    assert "more options" not in whole
    assert len(short.splitlines()) < 70 < len(whole.splitlines())


@pytest.mark.parametrize("ask", ["--max-unsent-kb", "max-unsent-kb", "max_unsent_kb"])
def test_a_flag_is_explained_alone(asked: Help, ask: str) -> None:
    shown = asked("serve", f"--help={ask}")
    assert "--max-unsent-kb N" in shown and "Admission and streams:" in shown
    assert "--max-pending" not in shown


def test_a_group_is_shown_whole_with_what_else_is_about_the_word(asked: Help) -> None:
    shown = asked("serve", "--help=Admission")
    assert all(flag in shown for flag in ("--limit-concurrency", "--keep-alive", "--drain-timeout")) and "--port" not in shown
    cache = asked("serve", "--help", "cache")
    assert "--num-scheduler-steps" in cache, "its group is 'Scheduling and prefix cache'"
    assert "--kv-cache-gb" in cache and "--port" not in cache


def test_a_flag_brings_the_group_that_is_named_after_it_unless_it_is_asked_for_with_its_dashes(asked: Help) -> None:
    shown = asked("serve", "--help=device")
    assert (
        all(flag in shown for flag in ("--device {", "--attention-backend {", "--tensor-parallel-size N")) and "--block-size" not in shown
    )
    assert "--device {" in (alone := asked("serve", "--help=--device")) and "--attention-backend" not in alone
    assert "--block-size" not in asked("bench", "latency", "--help=model"), "its group, 'The core: …', has the word in what follows"


def test_above_the_commands_a_word_is_looked_for_in_all_of_them_and_each_option_told_once(asked: Help) -> None:
    shown = asked("--help=lookup")
    assert shown.count("--prompt-lookup-max N") == 1 and "usage: mqlab serve" in shown
    assert "--goodput" in asked("bench", "--help=MLPerf")
    assert asked("--help", "serve") == asked("serve", "--help")


def test_nothing_found_is_an_error_that_says_what_there_is(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["serve", "--help=zebra"]) == 2
    assert "'zebra'" in (told := capsys.readouterr().err) and "--help=all" in told


@pytest.mark.parametrize("columns", [60, 100, 300])
def test_lines_fit_the_terminal_and_flags_stay_in_one_piece(asked: Help, columns: int) -> None:
    shown = asked("serve", "--help=all", columns=columns)
    prose = [line for line in shown.splitlines() if line.startswith(" " * 10)]
    assert max(map(len, prose)) <= min(columns, 120) and max(map(len, prose)) > min(columns, 120) - 20
    assert not any(line.endswith("-") for line in prose)


COMMANDS = ("serve", "bench", "compare", "fetch", "profile", "calibrate", "ps", "stop", "check-topology", "metrics", "trace")
BENCHES = ("throughput", "latency", "serve", "frontend", "capacity", "codecs", "sampler", "scheduler", "calibration", "device", "seeds")


@pytest.mark.parametrize("command", [*COMMANDS, *(f"bench {name}" for name in BENCHES)])
def test_every_command_explains_itself(asked: Help, command: str) -> None:
    assert asked(*command.split(), "--help").startswith(f"usage: mqlab {command}")
    assert asked(*command.split(), "--help=all").startswith(f"usage: mqlab {command}")
