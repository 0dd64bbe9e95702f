"""What docs/metrics.md and the dashboard say of the metrics page is what is on it."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client.core import Metric
from prometheus_client.parser import text_string_to_metric_families
from serving import serving
from starlette.applications import Starlette
from starlette.routing import Route

from mqlab.server import app as application
from mqlab.server.metrics.counted import HANDLERS, SIZE
from mqlab.server.metrics.enginepage import EnginePage
from mqlab.server.metrics.frontpage import FrontPage, process_families
from mqlab.server.metrics.scrape import as_text
from mqlab.types import EngineStats, ModelInfo

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs" / "metrics.md"
DASHBOARD = json.loads((ROOT / "profiles" / "grafana" / "mqlab.json").read_text())
LABELS = {"model_name": "m", "engine": "0"}
INFO = ModelInfo(name="m", vocab_size=9, max_model_len=100, max_prompt_len=99)
SUFFIXES = {"counter": ("_total",), "histogram": ("_bucket", "_sum", "_count"), "gauge": ("",)}
ROW = re.compile(r"^\| `(\w+)` \| (gauge|counter|histogram) \| (.+?) \| (.+?) \| (.+?) \|$", re.MULTILINE)


def families(prefix: str = "mqlab:") -> list[Metric]:
    """All families, each with something in it: guesses of two places, and every answer that a server can give."""
    engine = EnginePage(INFO, prefix, LABELS)
    stats = EngineStats(accepted_at=(2, 1), finished={"stop": 1})
    front = FrontPage([1.0] * SIZE, prefix, LABELS, INFO.max_model_len)
    made = [*engine.known(True), *engine.families(stats), *front.families(), *process_families({0: os.getpid()})]
    return [*text_string_to_metric_families(as_text(made).decode())]


def name_of(family: Metric) -> str:
    """As the table has it: what one asks Prometheus for."""
    return family.name.removeprefix("mqlab:") + ("_total" if family.type == "counter" else "")


def test_the_table_is_the_page() -> None:
    rows = {name: (kind, labels, text) for name, kind, labels, _, text in ROW.findall(DOCS.read_text())}
    page = {}
    for family in families():
        labels = sorted({label for sample in family.samples for label in sample.labels} - LABELS.keys() - {"le"})
        page[name_of(family)] = (family.type, ", ".join(labels) or "–", family.documentation)
    assert rows == page


async def test_a_server_has_the_families_of_the_table(model_folder: Path) -> None:
    async with serving(model_folder) as served, httpx.AsyncClient(base_url=served.url) as client:
        await client.get("/health")
        page = (await client.get("/metrics")).text
    assert [family.name for family in text_string_to_metric_families(page)] == [family.name for family in families()]


def panels() -> Iterator[dict[str, Any]]:
    yield from (panel for panel in DASHBOARD["panels"] if panel["type"] != "row")


def expressions() -> list[str]:
    return [target["expr"] for panel in panels() for target in panel["targets"]]


@pytest.mark.parametrize("prefix", ["mqlab", "vllm"])
def test_every_metric_of_the_dashboard_is_on_the_page(prefix: str) -> None:
    known = {family.name + suffix for family in families(f"{prefix}:") for suffix in SUFFIXES[family.type]}
    (variable,) = [one for one in DASHBOARD["templating"]["list"] if one["name"] == "prefix"]
    assert prefix in variable["query"].split(",")
    asked = [*expressions(), *(one["definition"] for one in DASHBOARD["templating"]["list"] if one["type"] == "query")]
    named = {name for one in asked for name in re.findall(r"\b(?:(?:mqlab|vllm):|process_|http_)\w+", one.replace("${prefix}", prefix))}
    assert len(named) > 30
    assert named <= known


def test_labels_of_the_dashboard_are_those_of_the_metrics() -> None:
    labels = {family.name + suffix: set(family.samples[0].labels) | {"le"} for family in families() for suffix in SUFFIXES[family.type]}
    for expression in expressions():
        for name, selector in re.findall(r"((?:mqlab:|http_|process_)\w+)\{(.*?)\}", expression.replace("${prefix}", "mqlab")):
            assert set(re.findall(r"(\w+)[!=]~?\"", selector)) <= labels[name], expression
    assert all(
        "model_name" in expression for expression in expressions() if "${prefix}" in expression and "http_responses" not in expression
    )


def test_the_dashboard_is_one_that_grafana_takes() -> None:
    assert {"title", "uid", "schemaVersion", "panels", "templating", "time"} <= DASHBOARD.keys()
    assert [variable["name"] for variable in DASHBOARD["templating"]["list"]] == ["datasource", "prefix", "model_name"]
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(set(ids)) == len(ids)
    for panel in panels():
        assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
        assert panel["title"] and panel["description"]
        references = [target["refId"] for target in panel["targets"]]
        assert len(set(references)) == len(references) > 0
        assert panel["fieldConfig"]["defaults"]["unit"]


def test_no_panel_lies_upon_another() -> None:
    places = [panel["gridPos"] for panel in DASHBOARD["panels"]]
    assert all(place["x"] >= 0 and place["x"] + place["w"] <= 24 and place["y"] >= 0 and place["w"] > 0 < place["h"] for place in places)
    for one, other in combinations(places, 2):
        across = one["x"] < other["x"] + other["w"] and other["x"] < one["x"] + one["w"]
        along = one["y"] < other["y"] + other["h"] and other["y"] < one["y"] + one["h"]
        assert not (across and along), (one, other)


def test_brackets_of_every_expression_close() -> None:
    for expression in expressions():
        for opened, closed in ("()", "[]", "{}"):
            assert expression.count(opened) == expression.count(closed), expression


async def test_every_route_is_counted_under_its_own_name(model_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[str] = []

    class Noting(Starlette):
        def __init__(self, routes: list[Route], **more: Any) -> None:
            found.extend(route.path for route in routes)
            super().__init__(routes=routes, **more)

    monkeypatch.setattr(application, "Starlette", Noting)
    async with serving(model_folder, server={"enable_control": True}):
        assert sorted(HANDLERS) == sorted(set(found))
