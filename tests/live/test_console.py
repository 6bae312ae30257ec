"""The console of a real bookie, without a browser: its files, their headers, and the endpoints that they name."""

from __future__ import annotations

import http.client
import json
import pathlib
import re
from collections.abc import Iterator
from urllib.parse import urljoin

import pytest

import bookies
from bookies.admin.cluster import LocalCluster

pytestmark = pytest.mark.live

STATIC = pathlib.Path(bookies.__file__).parent / "web" / "console" / "static"
SIZE_MAX = 200_000  # bytes of all files
CONSTANT = re.compile(r"const (\w+) = `([^`]*)`")
PATH = re.compile(r"`(\$\{API\}[^`]*)`|\"(/healthz)\"")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    settings = {"journal_preallocate_size": 1 << 20, "index_cache_size": 1 << 20, "http_port": 0}
    cluster = LocalCluster(tmp_path_factory.mktemp("console") / "bk-data", 1, lease_ms=2000, settings=settings)
    cluster.start()
    yield cluster
    cluster.stop()


def fetch(cluster: LocalCluster, path: str) -> tuple[int, dict[str, str], bytes]:
    (file,) = pathlib.Path(cluster.bookies[0].directory).rglob("control.json")
    connection = http.client.HTTPConnection(*json.loads(file.read_text())["http"], timeout=30)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        return response.status, {name.lower(): value for name, value in response.getheaders()}, response.read()
    finally:
        connection.close()


def named_paths(script: str) -> Iterator[str]:
    """Yield the endpoints that a module names, with `{}` for what it inserts."""
    constants = dict(CONSTANT.findall(script))
    for name, value in constants.items():
        script = script.replace(f"`${{{name}}}", f"`{value}")
    for template, plain in PATH.findall(script):
        path = (plain or template.replace("${API}", "/api/v1")).partition("?")[0]
        yield re.sub(r"\$\{[^}]*\}|\{\w+\}", "{}", path)


def is_same(one: list[str], other: list[str]) -> bool:
    """Report whether two paths may be the same endpoint: a placeholder stands for any part."""
    return len(one) == len(other) and all(a == b or "{" in a + b for a, b in zip(one, other, strict=True))


def test_every_file_is_served_and_names_only_files_that_exist(cluster: LocalCluster) -> None:
    pending, seen = ["/console"], set[str]()
    while pending:
        path = pending.pop()
        if path in seen:
            continue
        seen.add(path)
        status, headers, body = fetch(cluster, path)
        assert status == 200, path
        assert "default-src 'none'" in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["x-frame-options"] == "DENY"
        text = body.decode()
        assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)", text), f"{path} names another host"
        names = re.findall(r'(?:src|href)="(/console/[^"]+)"|from "(\./[^"]+)"', text)
        pending += [urljoin("/console/", first or second) for first, second in names]
    assert {path.removeprefix("/console/") for path in seen - {"/console"}} | {"console.html"} == {
        file.name for file in STATIC.iterdir()
    }
    assert sum(file.stat().st_size for file in STATIC.iterdir()) < SIZE_MAX


def test_the_endpoints_that_the_scripts_name_exist(cluster: LocalCluster) -> None:
    described = [path.split("/") for path in json.loads(fetch(cluster, "/openapi.json")[2])["paths"]]
    named = {path for file in STATIC.glob("*.js") for path in named_paths(file.read_text())}
    assert len(named) > 20
    missing = [path for path in sorted(named) if not any(is_same(path.split("/"), known) for known in described)]
    assert not missing


def test_scripts_never_write_html_and_keep_the_token_in_the_tab() -> None:
    text = "".join(file.read_text() for file in STATIC.glob("*.js"))
    for name in (
        "innerHTML",
        "outerHTML",
        "insertAdjacentHTML",
        "document.write",
        "localStorage",
        "document.cookie",
        "eval(",
    ):
        assert name not in text
    assert "sessionStorage" in text


def test_what_the_pages_ask_for_is_answered(cluster: LocalCluster) -> None:
    with (
        bookies.blocking.connect(cluster.metadata_uri) as store,
        store.create(ensemble=1, write_quorum=1, ack_quorum=1) as ledger,
    ):
        ledger.append_many([b"<script>", b"\xff", b"three"])
        ledger.seal()
        store.log("orders").create(ensemble=1, write_quorum=1, ack_quorum=1)
    answers = {
        path: json.loads(body)
        for path in (
            "/api/v1/user",
            "/api/v1/health",
            "/api/v1/cluster",
            "/api/v1/samples",
            "/api/v1/bookies?space=true&mode=writable&limit=100",
            "/api/v1/logs?prefix=ord",
            "/api/v1/logs/orders",
            "/api/v1/logs/orders/cursors",
            "/api/v1/recovery/ledgers?limit=100",
        )
        if (body := fetch(cluster, path)[2])
    }
    assert answers["/api/v1/health"]["findings"]
    (bookie,) = answers["/api/v1/bookies?space=true&mode=writable&limit=100"]
    assert bookie["disk_free"] <= bookie["disk_total"]
    assert bookie["http"].startswith("http://127.0.0.1:")
    assert answers["/api/v1/logs?prefix=ord"] == ["orders"]
    assert answers["/api/v1/logs/orders"]["log"] == "orders"
    _, headers, body = fetch(
        cluster, f"/api/v1/ledger/read?ledger_id={ledger.ledger_id}&start_entry_id=0&end_entry_id=0"
    )
    assert (headers["x-bk-last"], json.loads(body)) == ("2", {"0": "<script>"})
