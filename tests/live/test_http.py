"""The HTTP server of real processes: a bookie and auto-recovery are scraped, probed, and asked what Apache's are."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import pathlib
import re
import signal
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.fakes.certificates import Authority, Files
from tests.live.command import Done, bk, bk_process

import bookies
from bookies.admin.cluster import LocalCluster

pytestmark = pytest.mark.live

FAST = {"journal_preallocate_size": 1 << 20, "index_cache_size": 1 << 20, "write_cache_size": 4 << 20, "http_port": 0}
API = "/api/v1"


@pytest.fixture
def cluster(tmp_path: pathlib.Path) -> Iterator[LocalCluster]:
    cluster = LocalCluster(tmp_path / "bk-data", 1, lease_ms=2000, settings=FAST)
    cluster.start()
    yield cluster
    cluster.stop()


def address_of(cluster: LocalCluster) -> tuple[str, int]:
    """Where control.json says that the HTTP server listens."""
    (path,) = pathlib.Path(cluster.bookies[0].directory).rglob("control.json")
    host, port = json.loads(path.read_text())["http"]
    return host, port


def get(address: tuple[str, int], path: str, method: str = "GET") -> tuple[int, bytes]:
    connection = http.client.HTTPConnection(*address, timeout=120)
    try:
        connection.request(method, path)
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()


def samples_of(address: tuple[str, int]) -> dict[str, float]:
    """By name, with the labels `success` and `quantile` as a suffix. The parser ends each counter in `_total`."""
    status, body = get(address, "/metrics")
    assert status == 200
    text = body.decode()
    return {
        (sample.name if f"\n{sample.name}" in text else sample.name.removesuffix("_total"))
        + sample.labels.get("success", "")
        + sample.labels.get("quantile", ""): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_a_bookie_is_scraped_and_probed(cluster: LocalCluster) -> None:
    address = address_of(cluster)
    with (
        bookies.blocking.connect(cluster.metadata_uri) as store,
        store.create(ensemble=1, write_quorum=1, ack_quorum=1) as ledger,
    ):
        ledger.append_many([b"x" * 100] * 1000)
        ledger.seal()
        with store.open(ledger.ledger_id) as reader:
            assert len(list(reader.read())) == 1000
        usage = store.usage()
        assert usage.counts.entries_confirmed == 1000
    samples = samples_of(address)
    assert samples["bookkeeper_server_ADD_ENTRY_REQUEST_counttrue"] == 1000
    assert samples["bookie_WRITE_BYTES"] > 100_000
    assert samples["bookkeeper_server_READ_ENTRY_REQUEST_counttrue"] > 0
    assert samples["bookie_READ_BYTES"] > 100_000
    assert 0 < samples["bookie_journal_JOURNAL_SYNC_sumtrue"] < 60_000
    assert samples["process_resident_memory_bytes"] > 10_000_000
    assert samples["bookies_metrics_failed_total"] == 0
    for path in ("/livez", "/startupz", "/readyz", "/heartbeat", f"{API}/bookie/is_ready", f"{API}/bookie/state"):
        assert get(address, path)[0] == 200
    listed: dict[str, Any] = json.loads(get(address, f"{API}/ledger/list?print_metadata=true&decode_meta=true")[1])
    assert listed[str(ledger.ledger_id)]["state"] == "CLOSED"
    read = json.loads(get(address, f"{API}/ledger/read?ledger_id={ledger.ledger_id}&page=1")[1])
    assert read["999"] == "x" * 100
    status, body = get(address, f"{API}/bookie/gc", "PUT")
    assert (status, "bk token add" in json.loads(body)["next"]) == (401, True)


def test_users_are_known_by_token_and_certificate_over_tls(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    authority = Authority(tmp_path)
    files, alice, stranger = authority.issue("server"), authority.issue("alice"), authority.issue("mallory")
    users = tmp_path / "users"
    done = bk("token", "add", "root", "--role", "administrator", "--users", str(users), "--json")
    token = json.loads(done.out)["token"]
    add = ("token", "add", "alice", "--role", "viewer", "--certificate", "commonName=alice", "--users", "users")
    assert bk(*add).status == 0
    assert token not in users.read_text()
    cluster = LocalCluster(
        tmp_path / "bk-data",
        1,
        lease_ms=2000,
        settings=FAST
        | {"users_file": str(users), "http_tls": True}
        | {"tls_certificate": files.certificate, "tls_key": files.key, "tls_authority": authority.path},
    )
    cluster.start()
    try:
        address = address_of(cluster)

        def ask(path: str, certificate: Files | None = None, **headers: str) -> int:
            context = ssl.create_default_context(cafile=authority.path)
            if certificate is not None:
                context.load_cert_chain(certificate.certificate, certificate.key)
            connection = http.client.HTTPSConnection(*address, timeout=120, context=context)
            try:
                connection.request("GET", path, headers=headers)
                response = connection.getresponse()
                response.read()
                return response.status
            finally:
                connection.close()

        url = f"https://{address[0]}:{address[1]}"
        (tmp_path / "token").write_text(f"{token}\n")
        server = ("--server", url, "--token-file", "token", "--authority", authority.path)

        def remote(*words: str) -> Done:
            return bk(*server, *words)

        near = ("--metadata", cluster.metadata_uri)
        for words in (("bookie", "list"), ("cluster", "info", "--json"), ("ledger", "list")):
            assert remote(*words).out == bk(*words, *near).out
        assert remote("bookie", "gc").status == 0
        assert remote("bookie", "settings", "--set", "gc_share_max=20").status == 0
        shown = remote("bookie", "settings", "--bookie", cluster.bookies[0].id).out
        assert "gc_share_max = 20 (run time" in shown
        new = bk("ledger", "create", "--ensemble", "1", "--ack-quorum", "1", *near).out.strip()
        assert "would delete" in remote("ledger", "delete", new, "--dry-run").out
        assert remote("ledger", "delete", new, "--yes").status == 0
        for words, problem in (
            (("ledger", "show", new), "no such ledger"),
            (("ledger", "read", "1"), "does not work with --server"),
            (("bookie", "gc", "--wait"), "--wait does not work with --server"),
            (("bookie", "state", "--bookie", "b7"), "is not registered"),
        ):
            done = remote(*words)
            assert (done.status in (1, 2), problem in done.err) == (True, True), done.err
        reading, entries = f"{API}/bookie/info", f"{API}/ledger/read?ledger_id=77"
        assert [ask("/livez"), ask(reading), ask(reading, stranger)] == [200, 401, 401]
        assert [ask(reading, alice), ask(entries, alice)] == [200, 403]
        assert ask(entries, Authorization=f"Bearer {token}") == 404
        with contextlib.suppress(ConnectionError, http.client.HTTPException):
            get(address, "/livez")  # plain text
            raise AssertionError("the server answered plain text")
        assert bk("token", "revoke", "root", "--users", "users").status == 0
        deadline = time.monotonic() + 120
        while ask(entries, Authorization=f"Bearer {token}") != 401:
            assert time.monotonic() < deadline
    finally:
        cluster.stop()


def test_a_port_in_use_prevents_the_start(cluster: LocalCluster, tmp_path: pathlib.Path) -> None:
    _, port = address_of(cluster)
    command = ["bookie", "run", "--bookie-id", "b9", "--port", "0", "--journal-dir", "j", "--ledger-dir", "l"]
    command += ["--metadata", cluster.metadata_uri]
    done = bk_process(*command, "--set", f"http_port={port}", cwd=tmp_path)
    assert done.status == 1
    assert f"http_port = {port}: cannot listen on 127.0.0.1" in done.err
    done = bk_process(*command, "--set", "http_port=0", "--set", "http_host=0.0.0.0", cwd=tmp_path)
    assert done.status == 1
    assert "which has no users; set users_file" in done.err


def test_auto_recovery_alone_is_scraped_and_probed(cluster: LocalCluster) -> None:
    command = [
        sys.executable,
        "-m",
        "bookies",
        "recovery",
        "run",
        "--metadata",
        cluster.metadata_uri,
        "--http-port",
        "0",
    ]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        match = re.fullmatch(r"HTTP server on (\S+):(\d+)\n", line)
        assert match is not None, line
        address = (match[1], int(match[2]))
        while get(address, "/startupz")[0] != 200:
            assert process.poll() is None
        samples = samples_of(address)
        assert samples["bookies_underreplicated_ledgers"] == 0
        assert samples["replication_worker_NUM_ENTRIES_WRITTEN"] == 0
        assert samples["bookies_metrics_failed_total"] == 0
        assert "bookie_SERVER_STATUS" not in samples
        assert get(address, "/readyz")[0] == 200
        assert json.loads(get(address, f"{API}/autorecovery/status")[1]) == {"enabled": True}
        url = f"http://{address[0]}:{address[1]}"
        assert "b1" in bk("--server", url, "bookie", "list").out
        refused = bk("--server", url, "recovery", "disable")
        assert (refused.status, "bk token add" in refused.err) == (1, True)
        status, body = get(address, f"{API}/bookie/info")
        assert status == 404
        assert "not served by the recovery process" in json.loads(body)["detail"]
    finally:
        os.kill(process.pid, signal.SIGTERM)
        process.communicate(timeout=120)


def test_without_the_setting_no_library_of_http_is_loaded(tmp_path: pathlib.Path) -> None:
    program = (
        "import sys, bookies.bookie.main, bookies.admin.commands.bookie, bookies.client.client\n"
        "print([name for name in sys.modules if name in ('h11', 'prometheus_client', 'bookies.web')])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout == "[]\n"
