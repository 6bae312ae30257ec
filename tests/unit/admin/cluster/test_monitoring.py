"""Prometheus and Grafana beside a local cluster: their files, and programs that answer or do not."""

from __future__ import annotations

import json
import os
import pathlib
import sys

import pytest

from bookies.admin.cluster import LocalCluster
from bookies.admin.cluster.dashboards import DASHBOARDS
from bookies.admin.cluster.monitoring import Monitoring

# Answers every request with 200 at the address of its last argument, as a program that is ready.
SERVER = """#!{python}
import http.server, sys
class Ready(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
http.server.HTTPServer(("127.0.0.1", int(sys.argv[-1].rpartition(":")[2])), Ready).serve_forever()
"""


@pytest.fixture
def cluster(tmp_path: pathlib.Path) -> LocalCluster:
    cluster = LocalCluster(tmp_path / "bk-data", 2)
    pathlib.Path(cluster.directory).mkdir()
    ready = {"http": ["127.0.0.1", 8080]}
    cluster.bookies[0].ready_file.write_text(json.dumps(ready))
    return cluster


def program(folder: pathlib.Path, name: str, text: str) -> str:
    path = folder / name
    path.write_text(text.format(python=sys.executable))
    path.chmod(0o755)
    return str(path)


def test_without_the_programs_their_files_are_written(cluster: LocalCluster) -> None:
    monitoring = Monitoring(cluster, find=lambda name: None)
    urls, remarks = monitoring.start(["127.0.0.1:9999"])
    assert urls == {}
    assert [remark.split()[0] for remark in remarks] == ["b2", "prometheus", "grafana"]
    targets = json.loads((monitoring.directory / "targets.json").read_text())
    assert [row["targets"] for row in targets] == [["127.0.0.1:8080"], ["127.0.0.1:9999"]]
    assert targets[0]["labels"] == {"instance": "b1"}
    assert len(list((monitoring.directory / "grafana" / "dashboards").iterdir())) == len(DASHBOARDS)
    assert "alert: BookieLost" in (monitoring.directory / "alerts.yml").read_text()
    assert monitoring.stop() == []


def test_a_program_is_started_once_and_stopped(cluster: LocalCluster, tmp_path: pathlib.Path) -> None:
    path = program(tmp_path, "prometheus", SERVER)
    monitoring = Monitoring(cluster, find={"prometheus": path}.get)
    urls, _ = monitoring.start()
    try:
        pid = json.loads((monitoring.directory / "running.json").read_text())["prometheus"]["pid"]
        again = Monitoring(cluster, find={"prometheus": path}.get)
        assert again.start()[0] == urls
        assert json.loads((monitoring.directory / "running.json").read_text())["prometheus"]["pid"] == pid
    finally:
        assert monitoring.stop() == ["prometheus"]
    assert not os.path.exists(f"/proc/{pid}")
    assert monitoring.stop() == []


def test_a_program_that_ends_at_once_is_reported(cluster: LocalCluster, tmp_path: pathlib.Path) -> None:
    path = program(tmp_path, "prometheus", "#!{python}\nraise SystemExit(1)\n")
    urls, remarks = Monitoring(cluster, find={"prometheus": path}.get).start()
    assert urls == {}
    assert any("prometheus does not answer: read" in remark for remark in remarks)
