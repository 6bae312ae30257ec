"""Alerts and dashboards name metrics and labels that exist, and each alert has a section that says what to do."""

from __future__ import annotations

import json
import pathlib
import re
import shutil
import subprocess
from typing import Any

import pytest
from tests.fakes.scripts import load_script
from tests.observe.states import STATES, rule_tests

from bookies.admin.cluster.alerts import ALERTS, alerts_file, expression_of, known_metrics
from bookies.admin.cluster.dashboards import DASHBOARDS, dashboard_file
from bookies.metrics.metric import QUANTILES, Kind

DOCS = pathlib.Path(__file__).parents[2] / "docs"
PROMTOOL = shutil.which("promtool")
EXPRESSIONS = [alert.expression for alert in ALERTS] + [
    text for panels in DASHBOARDS.values() for panel in panels for text in panel.lines.values()
]


@pytest.fixture(scope="module")
def observe() -> Any:
    return load_script("docs/observe.py")


def test_the_files_are_current(observe: Any) -> None:
    for name, text in observe.files().items():
        assert (DOCS / name).read_text() == text, f"{name}: make docs"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{bookie_WROTE_BYTES} > 0", "no metric has the name bookie_WROTE_BYTES"),
        ("{bookie_WRITE_BYTES}_sum > 0", "is a counter"),
        ("{bookies_loop_lag_seconds} > 0", "is a histogram"),
        ('{bookies_ready}{state="x"} == 0', "bookies_ready has no label state"),
        ("sum by (disk) ({bookies_disk_used_ratio})", "has the label disk"),
    ],
)
def test_names_suffixes_and_labels_that_do_not_exist_are_refused(text: str, reason: str) -> None:
    with pytest.raises(LookupError, match=reason):
        expression_of(text)


def test_a_label_of_a_legend_that_does_not_exist_is_refused() -> None:
    with pytest.raises(LookupError, match="has the label disk"):
        expression_of("{bookies_disk_used_ratio}", ["{{disk}}"])


def test_an_expression_gets_names_and_the_selector() -> None:
    assert expression_of("rate({bookie_WRITE_BYTES}[5m]) > 0") == "rate(bookie_WRITE_BYTES[5m]) > 0"
    text = expression_of('{bookies_ready}{condition="journal"} == 0', selector='job="b"')
    assert text == 'bookies_ready{condition="journal", job="b"} == 0'


def test_every_name_of_an_expression_is_marked() -> None:
    """So none can pass the check of names."""
    for text in EXPRESSIONS:
        plain = re.sub(r"\{\w+?\}", "", text)
        assert not re.search(r"\b(bookie_|bookies_|bookkeeper_|auditor_|replication_|process_)\w+", plain), text


def test_each_alert_has_a_section_that_says_what_to_do() -> None:
    page = (DOCS / "howto" / "alerts.md").read_text()
    for alert in ALERTS:
        section = page.partition(f"## {alert.name}\n")[2].partition("\n## ")[0]
        assert alert.step.split()[0] in section, alert.name
        assert all(f"({name}.md)" in section for name in alert.pages), alert.name
        assert alert.severity in ("info", "warning", "critical")


def test_dashboards_are_json_with_a_panel_for_each_row() -> None:
    for name, rows in DASHBOARDS.items():
        panels = json.loads(dashboard_file(name))["panels"]
        assert [panel["title"] for panel in panels] == [row.title for row in rows]
        assert [len(panel["targets"]) for panel in panels] == [len(row.lines) for row in rows]
        assert all('instance=~"$instance"' in target["expr"] or "up{" in target["expr"]
                   for panel in panels for target in panel["targets"])  # fmt: skip


def test_alerts_and_dashboards_cover_what_fails() -> None:
    """Metrics of failures that no alert asks for would be seen by nobody."""
    asked = " ".join(EXPRESSIONS)
    failures = [name for name in known_metrics() if re.search(r"failed|failures|damaged|alarm|refused", name)]
    assert not [name for name in failures if f"{{{name}}}" not in asked]


def test_durations_shrink_for_a_trial() -> None:
    text = alerts_file(faster=60)
    assert "[30s]" in text
    assert "for: 4s" in text
    assert "[30m]" not in text


@pytest.mark.skipif(PROMTOOL is None, reason="needs promtool, of the package prometheus")
@pytest.mark.parametrize("faster", [1, 60])
def test_prometheus_accepts_the_rules(faster: int, tmp_path: pathlib.Path) -> None:
    assert PROMTOOL is not None
    rules = tmp_path / "alerts.yml"
    rules.write_text(alerts_file(faster))
    command = [PROMTOOL, "check", "rules", str(rules)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr


def test_every_alert_has_a_state() -> None:
    assert list(STATES) == [alert.name for alert in ALERTS]


@pytest.mark.skipif(PROMTOOL is None, reason="needs promtool, of the package prometheus")
def test_each_alert_fires_in_its_state_and_none_in_a_calm_cluster(tmp_path: pathlib.Path) -> None:
    assert PROMTOOL is not None
    (tmp_path / "alerts.yml").write_text(alerts_file())
    (tmp_path / "tests.yml").write_text(rule_tests("alerts.yml"))
    command = [PROMTOOL, "test", "rules", "tests.yml"]
    result = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert result.returncode == 0, result.stderr + result.stdout


def test_what_public_dashboards_ask_for_is_answered_or_explained(observe: Any) -> None:
    document = observe.public_dashboards()
    queries = [query for panels in document["panels"].values() for _, query in panels]
    names = {name for query in queries for name in observe.PUBLIC_NAME.findall(query)}
    assert {name for name in names if not observe.is_answered(name)} == set(document["reasons"])


def test_labels_and_quantiles_of_public_dashboards_exist(observe: Any) -> None:
    from_scrape = {"instance", "job", "cluster", "kubernetes_pod_name"}
    for panels in observe.public_dashboards()["panels"].values():
        for _, query in panels:
            for name, matchers in re.findall(r"(\w+)\s*\{([^{}]*)\}", query):
                metric = known_metrics().get(re.sub(r"_(count|sum)$", "", name))
                if metric is None or not observe.is_answered(name):
                    continue
                own = {*metric.labels, *(("success", "quantile") if metric.kind is Kind.SUMMARY else ())}
                pairs = dict(re.findall(r'(\w+)\s*=~?\s*"([^"]*)"', matchers))
                assert set(pairs) <= own | from_scrape, query
                assert pairs.get("quantile", "1.0") in map(str, QUANTILES), query
