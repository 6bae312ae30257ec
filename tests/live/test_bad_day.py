"""A cluster on a bad day: one bookie's entries, a deleted ledger, another id, lost replicas, the end of the cluster."""

from __future__ import annotations

import asyncio
import pathlib
import shutil
import signal
from collections.abc import Callable
from typing import Any

import pytest
from tests.live.command import PATIENCE_S, Done, bk, commands_of, started, wait_stopped

from bookies.admin.cluster import LocalCluster

pytestmark = pytest.mark.live
REASON = ("--reason", "a test")


@pytest.fixture
def cluster(tmp_path: pathlib.Path) -> Any:
    with LocalCluster(tmp_path / "bk-data", 4, lease_ms=1500) as cluster:
        yield cluster


def appended(done: Callable[..., Done], tmp_path: pathlib.Path, count: int = 20) -> tuple[int, list[str], list[str]]:
    """A sealed ledger: its id, its lines, its bookies."""
    lines = [f"line {number}" for number in range(count)]
    path = tmp_path / "lines"
    path.write_text("".join(f"{line}\n" for line in lines))
    ledger_id = int(done("ledger", "append", "--new", "--input", path).out)
    bookies = done("ledger", "show", ledger_id, "--json").json()["fragments"][0]["bookies"]
    return ledger_id, lines, bookies


def test_one_bookie_is_read_tested_and_shown(cluster: LocalCluster, tmp_path: pathlib.Path) -> None:
    done = commands_of(cluster.metadata_uri)
    ledger_id, lines, bookies = appended(done, tmp_path)
    other = next(bookie.id for bookie in cluster.bookies if bookie.id not in bookies)
    for bookie in bookies:
        assert done("ledger", "read", ledger_id, "--bookie", bookie).out.splitlines() == lines
    words = ("ledger", "read", ledger_id, "--bookie", bookies[0], "--first", 3, "--last", 5, "--json")
    assert [row["entry"] for row in done(*words).rows()] == [3, 4, 5]
    beyond = done("ledger", "read", ledger_id, "--bookie", bookies[0], "--first", len(lines), status=1)
    assert f"in this range; it has 0 to {len(lines) - 1}" in beyond.err
    assert f"{other} has no entry of ledger" in done("ledger", "read", ledger_id, "--bookie", other, status=1).err
    tested = done("bookie", "test", bookies[0], other, "--entries", 50, "--json").json()
    assert (tested["bookies"], tested["passed"]) == ([bookies[0], other], True)
    assert done("ledger", "list", "--json").json()[0]["ledger"] == ledger_id
    assert "b9 is not registered" in done("bookie", "test", "b9", status=2).err
    endpoints = done("bookie", "show", other, "--json").json()["endpoints"]
    assert endpoints[0]["protocol"] == "bookie-rpc"
    assert "endpoint     bookie bookie-rpc://" in done("bookie", "show", other).out


def test_a_deleted_ledger_comes_back_with_its_entries(
    cluster: LocalCluster, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = commands_of(cluster.metadata_uri)
    ledger_id, lines, bookies = appended(done, tmp_path)
    (tmp_path / "dump").write_text(done("metadata", "dump", "--passwords").out)
    done("ledger", "delete", ledger_id, "--yes")
    found = {"ledger": ledger_id, "state": "found", "since_ms": None, "left_ms": None}
    assert bk("bookie", "orphans", "--bookie", bookies[0], "--json").json() == {bookies[0]: [found]}
    bk("bookie", "gc", "--wait", "--bookie", bookies[0])
    [row] = bk("bookie", "orphans", "--bookie", bookies[0], "--json").json()[bookies[0]]
    assert row["state"] == "quarantined"
    done("metadata", "apply", "dump", ledger_id, *REASON)
    assert done("ledger", "read", ledger_id).out.splitlines() == lines
    bk("bookie", "gc", "--wait", "--bookie", bookies[0])
    assert bk("bookie", "orphans", "--json").json() == {bookie.id: [] for bookie in cluster.bookies}
    assert done("ledger", "verify", ledger_id).status == 0
    never = (tmp_path / "dump").read_text().replace(f'"ledger": {ledger_id},', '"ledger": 999,')
    (tmp_path / "never").write_text(never)
    refused = done("metadata", "apply", "never", 999, *REASON, status=1)
    assert "no bookie shows the last one (" in refused.out
    assert all(f"{bookie}: " in refused.out for bookie in bookies)
    assert '--accept "ledger 999 may lose data"' in refused.err


def test_a_bookie_gets_another_id(cluster: LocalCluster, tmp_path: pathlib.Path) -> None:
    done = commands_of(cluster.metadata_uri)
    ledgers = [appended(done, tmp_path) for _ in range(3)]
    old = ledgers[0][2][0]
    named = [ledger_id for ledger_id, _, bookies in ledgers if old in bookies]
    assert f"{old} is registered" in done("bookie", "rename", old, "new", *REASON, status=2).err
    cluster.kill(old, signal.SIGTERM)
    asyncio.run(wait_stopped(cluster.metadata_uri, old))
    assert "new is not registered" in done("bookie", "rename", old, "new", *REASON, status=2).err
    directory = tmp_path / "bk-data" / old
    places = ("--journal-dir", directory / "journal", "--ledger-dir", directory / "ledgers")
    cookie = tmp_path / "VERSION"
    cookie.write_text(done("cookie", "generate", "--bookie-id", "new", *places).out)
    for name in ("journal", "ledgers"):
        shutil.copy(cookie, directory / name / "current" / "VERSION")
    done("cookie", "create", "new", cookie)
    words = ("bookie", "run", "--metadata", cluster.metadata_uri, "--bookie-id", "new", "--port", 0, *places)
    with started(*words) as process:
        assert process.stdout is not None
        assert "new" in process.stdout.readline()  # it serves
        planned = done("bookie", "rename", old, "new", *REASON, "--dry-run", "--json").json()
        assert (planned["changed"], planned["kept"]) == (len(named), [])
        assert done("bookie", "rename", old, "new", *REASON, "--json").json()["changed"] == len(named)
        assert done("ledger", "list", "--bookie", old, "--json").json() == []
        for ledger_id, lines, _ in ledgers:
            assert done("ledger", "read", ledger_id).out.splitlines() == lines
            assert done("ledger", "verify", ledger_id).status == 0
        assert done("ledger", "read", named[0], "--bookie", "new").out.splitlines() == ledgers[0][1]
        done("cookie", "delete", old)
        assert done("metadata", "check").status == 0
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=PATIENCE_S)


def test_a_cluster_is_removed_and_comes_back_from_the_dump(cluster: LocalCluster, tmp_path: pathlib.Path) -> None:
    done = commands_of(cluster.metadata_uri)
    ledger_id, lines, _ = appended(done, tmp_path)
    instance_id = done("metadata", "show", "--json").json()["instance_id"]
    words = ("metadata", "nuke", "--instance-id", instance_id, "--dump", tmp_path / "dump")
    assert "registered: stop all clients" in done(*words, status=1).err
    assert done("ledger", "read", ledger_id).out.splitlines() == lines
    cluster.stop()
    done(*words)
    assert "no cluster" in done("metadata", "show", status=1).err
    done("metadata", "load", tmp_path / "dump")
    cluster.start()
    assert done("ledger", "read", ledger_id).out.splitlines() == lines
