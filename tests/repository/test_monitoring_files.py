"""The alert rules and the Grafana board of `deploy/` use only metrics and labels that the services expose."""

from __future__ import annotations

import json
import re
from datetime import timedelta
from typing import Any

import promql_parser
import pytest
import yaml

from tests.support.site.metric_families import metrics_of_services, series_of
from tests.support.site.pages import DOCS, ROOT
from tests.support.site.promql import PromqlError, result_labels

ALERTS = ROOT / "deploy" / "prometheus" / "alerts.yaml"
BOARD = ROOT / "deploy" / "grafana" / "icedb.json"
GROUPS: list[dict[str, Any]] = yaml.safe_load(ALERTS.read_text())["groups"]
RULES: list[dict[str, Any]] = [rule for group in GROUPS for rule in group["rules"]]
DASHBOARD: dict[str, Any] = json.loads(BOARD.read_text())
PANELS: list[dict[str, Any]] = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
TARGETS = [(panel["title"], target) for panel in PANELS for target in panel["targets"]]
#: Grafana replaces these in expressions.
BUILT_IN = {"__rate_interval": "5m"}
SERIES = series_of(metrics_of_services().values())


# ------------------------------------------------------------------------------------------ alert rules


def test_the_file_of_rules_has_the_form_that_prometheus_reads() -> None:
    assert yaml.safe_load(ALERTS.read_text()).keys() == {"groups"}
    assert all(group.keys() == {"name", "rules"} for group in GROUPS)
    for rule in RULES:
        assert rule.keys() - {"for"} == {"alert", "expr", "labels", "annotations"}
        assert promql_parser.parse_duration(rule.get("for", "1s")) > timedelta(0)
        assert rule["labels"].keys() == {"severity"}
        assert rule["labels"]["severity"] in {"critical", "warning"}
    names = [rule["alert"] for rule in RULES]
    assert len(names) == len(set(names))


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: str(rule["alert"]))
def test_an_alert_uses_exposed_metrics_and_explains_itself(rule: dict[str, Any]) -> None:
    labels = result_labels(rule["expr"], SERIES)
    annotations = rule["annotations"]
    assert annotations.keys() == {"summary", "description", "runbook"}
    texts = annotations["summary"] + annotations["description"]
    assert set(re.findall(r"\$labels\.(\w+)", texts)) <= labels
    page, _, anchor = annotations["runbook"].partition("#")
    headings = re.findall(r"^#+ (.*)$", (ROOT / page).read_text(), flags=re.MULTILINE)
    assert rule["alert"] in headings
    assert anchor == rule["alert"].lower()


def test_the_series_that_raise_each_alert_are_exposed_ones() -> None:
    """`promtool test rules` runs this file; promtool is not on PyPI."""
    tests = yaml.safe_load(ALERTS.with_name("alerts_test.yaml").read_text())["tests"]
    raised = [
        sample["labels"] for test in tests for [case] in [test["promql_expr_test"]] for sample in case["exp_samples"]
    ]
    assert raised == [f'{{alertname="{rule["alert"]}"}}' for rule in RULES]
    for test in tests:
        for series in test["input_series"]:
            result_labels(series["series"], SERIES)


def test_the_page_describes_no_other_alert() -> None:
    headings = re.findall(r"^### (IceDB\w+)$", (DOCS / "metrics.md").read_text(), flags=re.MULTILINE)
    assert sorted(headings) == sorted(rule["alert"] for rule in RULES)


# ------------------------------------------------------------------------------------------ board


def test_the_variables_and_panels_of_the_board_are_consistent() -> None:
    text = BOARD.read_text()
    variables = {variable["name"] for variable in DASHBOARD["templating"]["list"]}
    assert set(re.findall(r"\$\{?(\w+)", text)) - {"__all", *BUILT_IN} == variables, "each is defined and used"
    assert {(panel["type"]) for panel in PANELS} == {"stat", "timeseries"}
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(ids) == len(set(ids))
    cells = [
        (x, y)
        for panel in DASHBOARD["panels"]
        for x in range(panel["gridPos"]["x"], panel["gridPos"]["x"] + panel["gridPos"]["w"])
        for y in range(panel["gridPos"]["y"], panel["gridPos"]["y"] + panel["gridPos"]["h"])
    ]
    assert len(cells) == len(set(cells)), "no panel covers another one"
    assert all(0 <= x < 24 for x, _ in cells)
    assert {panel["datasource"]["uid"] for panel in PANELS} == {"${datasource}"}


@pytest.mark.parametrize(("title", "target"), TARGETS, ids=lambda value: value if isinstance(value, str) else "")
def test_a_panel_uses_exposed_metrics(title: str, target: dict[str, Any]) -> None:
    defaults = {v["name"]: v["query"] for v in DASHBOARD["templating"]["list"] if v["type"] == "textbox"}
    values = {**BUILT_IN, **defaults, "table": ".*"}
    expression = re.sub(r"\$(\w+)", lambda match: values[match[1]], target["expr"])
    labels = result_labels(expression, SERIES)
    assert set(re.findall(r"{{(\w+)}}", target["legendFormat"])) <= labels
    assert title


# ------------------------------------------------------------------------------------------ the check itself


@pytest.mark.parametrize(
    ("expression", "why"),
    [
        ("icedb_table_live_part > 1", "no service exposes"),
        ('icedb_table_live_parts{tabel="x"}', "no label"),
        ("sum by (verb) (icedb_table_live_parts)", "to aggregate by"),
        ("icedb_table_live_parts / icedb_table_maintenance_due", "different labels"),
        ("histogram_quantile(0.9, sum by (verb) (rate(icedb_dagster_run_duration_seconds_bucket[1h])))", "le"),
        ("rate(icedb_table_commits_total)", "expected type"),
        ("sum(", "unclosed"),
    ],
)
def test_a_wrong_expression_is_rejected(expression: str, why: str) -> None:
    with pytest.raises(PromqlError, match=why):
        result_labels(expression, SERIES)
