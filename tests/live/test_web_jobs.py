"""A Spark job that a user starts over HTTP, with the real program."""

from __future__ import annotations

import http.client
import json
import pathlib
import time
from collections.abc import Iterator
from typing import Any

import pytest
from tests.live.command import Family
from tests.live.spark_marks import SMALL_BOOKIES

from bookies.admin.cluster import LocalCluster
from bookies.protocol.rights.users import hash_of

pytestmark = [pytest.mark.live, pytest.mark.spark]

FAMILY = "BOOKIES_TEST_FAMILY"
PATIENCE_S = 600  # a machine that does many other things takes minutes to start Java


@pytest.fixture
def family(monkeypatch: pytest.MonkeyPatch) -> Family:
    """The bookie, and what it starts."""
    family = Family()
    monkeypatch.setenv(FAMILY, family.environment()[FAMILY])
    return family


@pytest.fixture
def cluster(tmp_path: pathlib.Path, family: Family) -> Iterator[LocalCluster]:
    users = tmp_path / "users"
    users.write_text(f"ada administrator {hash_of('bk_ada')}\n")
    settings = {
        **SMALL_BOOKIES,
        "http_port": 0,
        "users_file": str(users),
        "http_jobs_directory": str(tmp_path / "jobs"),
    }
    with LocalCluster(tmp_path / "bk-data", 1, settings=settings) as cluster:
        yield cluster


def call(cluster: LocalCluster, method: str, path: str, body: object = None) -> Any:
    (file,) = pathlib.Path(cluster.bookies[0].directory).rglob("control.json")
    connection = http.client.HTTPConnection(*json.loads(file.read_text())["http"], timeout=PATIENCE_S)
    try:
        data = None if body is None else json.dumps(body)
        connection.request(method, f"/api/v1{path}", data, {"Authorization": "Bearer bk_ada"})
        response = connection.getresponse()
        found = response.read().decode()
        assert response.status == 200, found
        return found if response.getheader("Content-Type", "").startswith("text/html") else json.loads(found)
    finally:
        connection.close()


def test_a_job_is_forecast_and_does_not_outlive_its_server(cluster: LocalCluster, family: Family) -> None:
    assert "usage" in {row["job"] for row in call(cluster, "GET", "/spark-jobs")}
    with cluster.connect() as store, store.create(ensemble=1) as ledger:
        ledger.append(b"x" * 1000)
        job = call(cluster, "POST", "/jobs", {"job": "usage", "options": {"top": 3}})["id"]
        deadline = time.monotonic() + PATIENCE_S
        while (row := call(cluster, "GET", f"/jobs/{job}"))["state"] == "running":
            assert time.monotonic() < deadline, row
            time.sleep(0.2)
    assert (row["state"], row["mode"], row["spark"]) == ("done", "plan", "usage"), row
    assert "1 items in 1 tasks" in row["result"]["lead"]
    assert call(cluster, "GET", f"/jobs/{job}/report")["parameters"]["top"] == 3
    assert call(cluster, "GET", f"/jobs/{job}/report?form=html").startswith("<!doctype html>")
    call(cluster, "POST", f"/jobs/{job}/run", {"mode": "run"})
    while not any("org.apache.spark" in line for line in family.members().values()):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    cluster.kill(0)
    family.wait_gone(PATIENCE_S)
