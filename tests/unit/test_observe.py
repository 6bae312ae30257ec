"""Alerts and dashboards name metrics that exist."""

from __future__ import annotations

import json
import pathlib
import re
import shutil
import subprocess
from typing import Any

import pytest
from tests.fakes.scripts import load_script

DOCS = pathlib.Path(__file__).parents[2] / "docs"
PROMTOOL = shutil.which("promtool")


@pytest.fixture(scope="module")
def observe() -> Any:
    return load_script("docs/observe.py")


def test_the_files_are_current(observe: Any) -> None:
    for name, text in observe.files().items():
        assert (DOCS / name).read_text() == text, f"{name}: make docs"


def test_a_metric_that_does_not_exist_is_refused(observe: Any) -> None:
    assert observe.expression_of("rate({bookie_WRITE_BYTES}[5m]) > 0") == "rate(bookie_WRITE_BYTES[5m]) > 0"
    with pytest.raises(LookupError, match="bookie_WROTE_BYTES"):
        observe.expression_of("{bookie_WROTE_BYTES} > 0")


def test_every_name_of_an_expression_is_marked(observe: Any) -> None:
    """So none can pass the check of names."""
    texts = [alert.expression for alert in observe.ALERTS]
    texts += [panel.expression for panels in observe.DASHBOARDS.values() for panel in panels]
    for text in texts:
        assert not re.search(r"(?<![{\w])(bookie_|bookies_|bookkeeper_|auditor_|replication_|process_)\w+", text), text


def test_dashboards_are_json_with_a_panel_for_each_row(observe: Any) -> None:
    for name, rows in observe.DASHBOARDS.items():
        panels = json.loads(observe.dashboard_file(name))["panels"]
        assert [panel["title"] for panel in panels] == [row.title for row in rows]
        assert all(panel["targets"][0]["expr"] for panel in panels)


@pytest.mark.skipif(PROMTOOL is None, reason="needs promtool, of the package prometheus")
def test_prometheus_accepts_the_rules() -> None:
    assert PROMTOOL is not None
    command = [PROMTOOL, "check", "rules", str(DOCS / "observe/alerts.yml")]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
