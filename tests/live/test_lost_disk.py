"""A bookie process that loses a disk, as an operator sees it: refusals, consent, what is owed, the old disk."""

from __future__ import annotations

import pathlib
import shutil
import signal
import time
from collections.abc import Iterator
from typing import Any

import pytest
from tests.live.command import PATIENCE_S, Done
from tests.live.command import bk as bk_command

import bookies as bk
from bookies.admin.cluster import LocalCluster
from bookies.admin.cluster.local_cluster import LocalBookie
from bookies.errors import BookKeeperError

pytestmark = pytest.mark.live

DISKS = ("ledgers", "ledgers1", "ledgers2")
LEDGERS, ENTRIES = 20, 50


@pytest.fixture
def cluster(tmp_path: pathlib.Path) -> Iterator[LocalCluster]:
    settings = {"entry_log_size_max": 1 << 20, "checkpoint_interval_ms": 500}
    cluster = LocalCluster(tmp_path / "bk-data", 4, lease_ms=1_000, settings=settings)
    for bookie in cluster.bookies:
        bookie.disks = DISKS
    with cluster:
        yield cluster


def fill(store: bk.blocking.Client) -> list[int]:
    ids = []
    for number in range(LEDGERS):
        with store.create(ensemble=3, write_quorum=3, ack_quorum=2) as ledger:
            for _ in range(ENTRIES):
                ledger.append(bytes([number]) * 10_000)
        ids.append(ledger.ledger_id)
    return ids


def fill_disk(store: bk.blocking.Client, disk: pathlib.Path) -> None:
    """Fill ledgers until some entries are on this disk of a bookie."""
    while not any(path.stat().st_size > 100_000 for path in disk.glob("current/*.log")):
        fill(store)


def stop(cluster: LocalCluster, bookie: LocalBookie) -> None:
    """Stop a bookie in order, so that its entries are in entry logs, and not in the journal."""
    cluster.kill(bookie.id, signal.SIGTERM)
    assert bookie.wait(PATIENCE_S)


def refused(cluster: LocalCluster, bookie: LocalBookie) -> str:
    with pytest.raises(BookKeeperError):
        cluster.restart(bookie.id)
    return bookie.log.read_text().splitlines()[-1]


def owed(bookie: LocalBookie) -> dict[str, Any]:
    [answer] = done("bookie", "owed", "--ledger-dir", bookie.directory / "ledgers", "--json").json().values()
    return dict(answer)


def done(*words: object, status: int = 0) -> Done:
    done = bk_command(*words)
    assert done.status == status, (done.out, done.err)
    return done


def verify(cluster: LocalCluster) -> None:
    result = bk_command("ledger", "verify", metadata=cluster.metadata_uri)
    assert (result.status, result.err) == (0, ""), result


def wait_whole(bookie: LocalBookie) -> dict[str, Any]:
    deadline = time.monotonic() + PATIENCE_S
    while (facts := owed(bookie))["ledgers_in_limbo"] or not facts["is_settled"]:
        assert time.monotonic() < deadline, facts
        time.sleep(0.05)
    return facts


def test_a_disk_is_lost_left_out_and_replaced(cluster: LocalCluster, tmp_path: pathlib.Path) -> None:
    bookie = cluster.bookies[1]
    lost, old = bookie.directory / "ledgers2", tmp_path / "old"
    with bk.blocking.connect(cluster.metadata_uri) as store:
        fill_disk(store, lost)
        stop(cluster, bookie)
        shutil.move(lost, old)
        assert f"start the bookie with --set lost_directories={bookie.id}/ledgers2" in refused(cluster, bookie)
        assert not lost.exists()
        bookie.settings["lost_directories"] = "elsewhere"
        assert "no directory of this bookie" in refused(cluster, bookie)
        bookie.settings["lost_directories"] = f"{bookie.id}/ledgers2"
        cluster.restart(bookie.id)
        facts = wait_whole(bookie)
        assert 0 < facts["fetched_bytes"] <= 1.05 * facts["found_bytes"]
        assert facts["lost_directories"] == f"{bookie.id}/ledgers2"
        assert not lost.exists()

        # The consent is not needed again, and outlasts a kill.
        del bookie.settings["lost_directories"]
        cluster.kill(bookie.id)
        cluster.restart(bookie.id)
        assert wait_whole(bookie)["entries_found"] == 0
        state = done("bookie", "state", "--ledger-dir", bookie.directory / "ledgers").out
        assert f"{bookie.id}/ledgers2" in state
        verify(cluster)

        # The old disk comes back.
        cluster.kill(bookie.id)
        shutil.copytree(old, lost)
        assert "ledgers2 has files, but it was declared lost" in refused(cluster, bookie)
        shutil.rmtree(lost)
        lost.mkdir()
        cluster.restart(bookie.id)
        assert owed(bookie)["lost_directories"] is None
        assert (lost / "current" / "VERSION").exists()
        fill_disk(store, lost)
        stop(cluster, bookie)
        shutil.rmtree(lost)
        assert "the disk that replaced a lost one is missing" in refused(cluster, bookie)
        bookie.settings["lost_directories"] = f"{bookie.id}/ledgers2"
        cluster.restart(bookie.id)
        assert wait_whole(bookie)["entries_fetched"] > 0
        verify(cluster)


def test_an_empty_bookie_returns_under_its_old_identity(cluster: LocalCluster) -> None:
    bookie = cluster.bookies[0]
    with bk.blocking.connect(cluster.metadata_uri) as store:
        ledgers = sum(bookie.id in store.metadata(ledger_id).bookies for ledger_id in fill(store))
        idle = store.create(ensemble=3, write_quorum=3, ack_quorum=2)
        while bookie.id not in idle.metadata.last_ensemble:
            idle = store.create(ensemble=3, write_quorum=3, ack_quorum=2)
        idle.append(b"before")
        cluster.kill(bookie.id)
        names = ("journal", *DISKS)
        for name in names:
            shutil.rmtree(bookie.directory / name)
        bookie.settings["lost_directories"] = ",".join(f"{bookie.id}/{name}" for name in names)
        assert "the bookie cannot do without it" in refused(cluster, bookie)
        for name in names:
            (bookie.directory / name).mkdir()
        cluster.restart(bookie.id)
        deadline = time.monotonic() + PATIENCE_S
        while "its writer has not closed it" not in (facts := owed(bookie))["ledger"].get(str(idle.ledger_id), ""):
            assert time.monotonic() < deadline, facts
            time.sleep(0.05)
        while (facts := owed(bookie))["entries_owed"]:
            assert time.monotonic() < deadline, facts
            time.sleep(0.05)
        assert facts["entries_fetched"] == ledgers * ENTRIES
        assert idle.append(b"after") == 1  # another bookie takes the place of this one
        idle.seal()
        wait_whole(bookie)
        verify(cluster)
