"""The dashboard for Grafana, the alerts, and the names of Kafka Streams' metrics:
series and labels in them exist.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import orjson
import pytest
import yaml  # type: ignore[import-untyped]

from coopstreams.status.reasons import HEALTH_CODES
from tests.docs import reference
from tests.docs.pages import ROOT, code_words, table_headed

OBSERVE = ROOT / "docs" / "operating" / "observe.md"
HEALTH = ROOT / "docs" / "reference" / "health.md"
DASHBOARD = ROOT / "docs" / "grafana" / "coopstreams.json"
ALERTS = ROOT / "docs" / "prometheus" / "alerts.yml"
_SERIES = re.compile(r"coopstreams_\w+")
_LABELS = re.compile(r"by \(([\w, ]+)\)")
_ADDED = {"le", "partition", "job", "instance"}
"""Labels of histograms, of an expression itself, and of Prometheus."""
NO_ALERT = {
    "calls-pause",
    "closing",
    "draining",
    "not-shared",
    "paused",
    "resting",
    "restoring",
    "share-group",
    "waiting",
}
"""Reasons that somebody wanted, that end by themselves, or that others report as well.
"""


def known() -> dict[str, set[str]]:
    """Return the labels of each series of an instance."""
    found: dict[str, set[str]] = {}
    for row in reference.metrics():
        name, kind, labels = (
            row[0].strip("`"),
            row[1],
            set(re.findall(r"`(\w+)`", row[2])),
        )
        endings = ("_bucket", "_sum", "_count") if kind == "histogram" else ("",)
        found |= {name + ending: labels for ending in endings}
    return found


def expressions() -> Iterator[tuple[str, str, str]]:
    """Yield title, expression and legend of each curve."""
    for panel in dashboard()["panels"]:
        for target in panel["targets"]:
            yield panel["title"], target["expr"], target["legendFormat"]


def dashboard() -> dict[str, Any]:
    loaded: dict[str, Any] = orjson.loads(DASHBOARD.read_bytes())
    return loaded


def alerts() -> list[dict[str, Any]]:
    return [
        rule
        for group in yaml.safe_load(ALERTS.read_text())["groups"]
        for rule in group["rules"]
    ]


def labels_in(expression: str) -> set[str]:
    """Return the labels that an expression keeps; all its series have them."""
    series = _SERIES.findall(expression)
    assert series
    assert set(series) <= known().keys()
    labels = {
        label.strip()
        for group in _LABELS.findall(expression)
        for label in group.split(",")
    }
    assert labels <= set.union(_ADDED, *(known()[name] for name in series))
    assert expression.count("(") == expression.count(")")
    return labels


@pytest.mark.parametrize(("title", "expression", "legend"), list(expressions()))
def test_a_curve_of_the_dashboard_asks_for_metrics_and_labels_that_exist(
    title: str, expression: str, legend: str
) -> None:
    assert set(re.findall(r"{{(\w+)}}", legend)) <= labels_in(expression), title


@pytest.mark.parametrize("rule", alerts(), ids=lambda rule: str(rule["alert"]))
def test_an_alert_asks_for_metrics_and_labels_that_exist(rule: dict[str, Any]) -> None:
    said = set(re.findall(r"\$labels\.(\w+)", rule["annotations"]["summary"]))
    assert said <= labels_in(rule["expr"])
    assert rule["labels"].keys() == {"severity"}


def test_a_reason_that_ends_by_no_restart_has_an_alert() -> None:
    asked = re.findall(r'code=~?"([^"]+)"', " ".join(rule["expr"] for rule in alerts()))
    assert {code for codes in asked for code in codes.split("|")} == set(
        HEALTH_CODES
    ) - NO_ALERT


def test_the_dashboard_has_every_metric_but_those_named_here() -> None:
    without = {
        "coopstreams_acquired_records",
        "coopstreams_clock_marks_total",
        "coopstreams_commits_total",
        "coopstreams_fetched_bytes_total",
        "coopstreams_generation",
        "coopstreams_http_requests_total",
        "coopstreams_redelivered_records_total",
        "coopstreams_restored_records_total",
        "coopstreams_snapshot_bytes",
        "coopstreams_snapshot_keys_total",
        "coopstreams_time_marks_total",
    }
    shown = set(_SERIES.findall(DASHBOARD.read_text()))
    names = {row[0].strip("`") for row in reference.metrics()}
    assert {
        name for name in names if not any(one.startswith(name) for one in shown)
    } == without


def test_the_codes_of_the_metric_of_health_are_those_of_the_page() -> None:
    """Those of one instance: that it does not answer is seen by others only."""
    codes = [
        code
        for row in table_headed(HEALTH, "reason", "means", "live")
        for code in code_words(row[0])
    ]
    assert sorted(codes) == sorted([*HEALTH_CODES, "unreachable"])


def test_panels_have_numbers_of_their_own_and_do_not_lie_on_each_other() -> None:
    panels = dashboard()["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    cells = [
        (x, y)
        for at in (panel["gridPos"] for panel in panels)
        for x in range(at["x"], at["x"] + at["w"])
        for y in range(at["y"], at["y"] + at["h"])
    ]
    assert len(cells) == len(set(cells))
    assert max(x for x, _ in cells) == 23


def test_metrics_that_kafka_streams_metrics_are_mapped_to_exist() -> None:
    rows = table_headed(OBSERVE, "Kafka Streams", "here")
    named = {
        word
        for row in rows
        for word in code_words(row[1])
        if word.startswith("coopstreams_")
    }
    assert len(rows) > 15
    assert named <= known().keys() | {row[0].strip("`") for row in reference.metrics()}
