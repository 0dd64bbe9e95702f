"""docs/serving.md can be followed: its commands are accepted, its YAML names what there is, its limits are those of the code."""

from __future__ import annotations

import re
import shlex
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import yaml

from mqlab.arguments import build_parser, serve_configs
from mqlab.config import EngineConfig, ServerConfig, Timing
from mqlab.server.http.gate import OPEN
from mqlab.server.http.patience import Patience

GUIDE = (Path(__file__).resolve().parents[2] / "docs" / "serving.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", GUIDE, re.DOTALL)


def commands() -> list[list[str]]:
    lines = [shlex.split(line, comments=True) for block in blocks("bash") for line in block.splitlines()]
    (pod,) = yaml.safe_load_all(blocks("yaml")[0])
    return [line[line.index("mqlab") + 1 :] for line in [*lines, pod["spec"]["containers"][0]["args"]] if line]


@pytest.mark.parametrize("command", commands(), ids=" ".join)
def test_each_command_is_accepted(command: list[str]) -> None:
    namespace = build_parser().parse(command)
    engine, server, _ = serve_configs(namespace)
    assert engine.model == "smollm2-135m" and isinstance(server, ServerConfig)


def test_every_flag_that_is_named_exists() -> None:
    known = {"--" + one.name.replace("_", "-") for config in (EngineConfig, ServerConfig, Timing) for one in fields(config)}
    named = set(re.findall(r"`(--[a-z][a-z-]+)", GUIDE))
    assert len(named) > 10 and named <= known


def test_the_probes_ask_what_is_open_and_never_restart_a_full_server() -> None:
    (pod,) = yaml.safe_load_all(blocks("yaml")[0])
    server: dict[str, Any] = pod["spec"]["containers"][0]
    paths = {name: server[name]["httpGet"]["path"] for name in ("startupProbe", "livenessProbe", "readinessProbe")}
    assert paths == {"startupProbe": "/health", "livenessProbe": "/health", "readinessProbe": "/ready"}
    assert set(paths.values()) <= OPEN
    drain = int(server["args"][server["args"].index("--drain-timeout") + 1])
    pause = int(server["lifecycle"]["preStop"]["exec"]["command"][1])
    assert pod["spec"]["terminationGracePeriodSeconds"] >= drain + pause + 5


def test_the_numbers_are_those_of_the_code() -> None:
    config, patience = ServerConfig(), Patience()
    assert f"`--max-body-mb` ({config.max_body_mb:g})" in GUIDE
    assert f"`--max-unsent-kb` ({config.max_unsent_kb})" in GUIDE
    assert f"`--keep-alive` ({config.keep_alive} s)" in GUIDE
    assert f"`--drain-timeout` says ({config.drain_timeout:g} s)" in GUIDE
    assert f"from its first byte | {patience.head_s:g} s |" in GUIDE
    assert f"{patience.body_s:g} s, and 1 s for each {patience.slowest / 1024:g} KiB" in GUIDE
    assert f"{patience.longest_head >> 10} KiB beyond the first piece" in GUIDE
