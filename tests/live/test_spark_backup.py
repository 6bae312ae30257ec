"""A backup of a whole cluster: incremental, killed and resumed, verified, and restored into another cluster."""

from __future__ import annotations

import pathlib
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from tests.live.copied_ledgers import content, log_values, sealed_ledgers
from tests.live.job_faults import Crash, crash_once, in_this_process
from tests.live.spark_marks import PANDAS_MARKS, SMALL_BOOKIES

from bookies.admin.cluster import LocalCluster
from bookies.client.repair import Administration
from bookies.errors import InvalidArgument
from bookies.spark.jobs import backup, restore_cluster, verify
from bookies.spark.jobs.shared import backup_files, common, copying
from bookies.spark.jobs.shared.common import JobConfig

pytestmark = PANDAS_MARKS


@pytest.fixture(scope="module")
def clusters(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[LocalCluster, LocalCluster]]:
    directory = tmp_path_factory.mktemp("backup")
    with (
        LocalCluster(directory / "old", 3, settings=SMALL_BOOKIES) as source,
        LocalCluster(directory / "new", 3, settings=SMALL_BOOKIES) as target,
    ):
        yield source, target


def config(cluster: LocalCluster | None, run_id: str, **options: Any) -> JobConfig:
    mode = options.pop("mode", common.RUN)
    uri = "" if cluster is None else cluster.metadata_uri
    return JobConfig(uri, run_id, mode, None, options, is_quiet=True)


def outcomes(frame: Any) -> dict[str, int]:
    return dict(Counter(row["outcome"] for row in frame.toArrow().to_pylist()))


def test_a_cluster_is_backed_up_and_restored(
    spark: Any, clusters: tuple[LocalCluster, LocalCluster], tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, target = clusters
    to = str(tmp_path / "safe")
    with source.connect() as store:
        ids = sealed_ledgers(store, 7)
        log = store.log("orders")
        log.create()
        with log.lead() as leader:
            leader.append_many([b"one", b"two"])
        first = backup.job(spark, config(source, "first", to=to))
        assert outcomes(first) == {"copied": 5}
        with log.lead() as leader:
            log.move_cursor("web", leader.append_many([b"three", b"four"]).next)
            store.delete(ids[0])
            with store.create() as writer:
                writer.append(b"later")
            runs_here(spark, source, to, writer.ledger_id, monkeypatch)
        restored_from(spark, clusters, to, monkeypatch)
        with target.connect() as copy:
            for ledger_id in ids[1:]:
                assert content(copy, ledger_id) == content(store, ledger_id)
                there, here = copy.metadata(ledger_id), store.metadata(ledger_id)
                assert (there.ctime_ms, there.digest_type, there.length, there.write_quorum) == (
                    *(here.ctime_ms, here.digest_type, here.length),
                    here.write_quorum,
                )
                assert there.custom_metadata["owner"] == b"me"
                assert copy.administration().check_ledger(ledger_id, percentage=100).is_ok
            assert log_values(copy, "orders") == [b"one", b"two", b"three", b"four"][: len(log_values(copy, "orders"))]
            assert len(log_values(copy, "orders")) >= 3  # the last one may have been confirmed and not announced
            cursor = copy.log("orders").cursors()["web"]
            with copy.log("orders").lead() as leader:
                after = leader.append(b"five")
            with copy.log("orders").open() as reader:
                assert [entry.payload for entry in reader.read(cursor.position)] == [b"five"]
            assert after.ledger_id > max(ids)
    with monkeypatch.context() as faults:
        in_this_process(faults)
        damaged_and_pruned(spark, source, to)


def runs_here(spark: Any, source: LocalCluster, to: str, later: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run backups while the log is written: one that is killed, and one that copies no ledger again."""
    with monkeypatch.context() as faults:
        in_this_process(faults)
        dry = backup.complete(spark, config(source, "dry", to=to, mode=common.DRY_RUN))
        assert outcomes(dry.frame) == {"would be copied": 1, "carried-over": 4, "deleted": 1, "omitted": 1}
        assert "it is open" in str(dry.frame.toArrow().to_pylist())
        with monkeypatch.context() as more:
            crash_once(more, backup_files, "write_contents", after=False)
            with pytest.raises(Crash):
                backup.job(spark, config(source, "killed", to=to))
        assert [run.run for run in backup_files.runs(backup_root(to))] == ["first"]
        copied = []
        write = copying.written_files
        with source.connect() as store, store.create() as writer:
            writer.append(b"soon gone")

        async def counted(tools: Any, ledger_id: int, *rest: Any) -> Any:
            copied.append(ledger_id)
            if ledger_id == writer.ledger_id:  # Deleted while the run copies: the metadata is read again.
                await tools.client.delete(ledger_id)
            return await write(tools, ledger_id, *rest)

        faults.setattr(copying, "written_files", counted)
        second = backup.complete(spark, config(source, "second", to=to, open=True, keep=2))
        assert outcomes(second.frame) == {"copied": 2, "carried-over": 4, "deleted": 1}
        assert len(copied) == 2
        assert later not in copied
        with pytest.raises(InvalidArgument, match="has a complete run second already"):
            backup.job(spark, config(source, "second", to=to))
        found = verify.complete(spark, config(None, "v", backup=to, backup_run="second"))
        assert outcomes(found.frame) == {"done": 6}


def backup_root(to: str) -> str:
    return "/".join(backup_files.root_of(to))


def restored_from(
    spark: Any, clusters: tuple[LocalCluster, LocalCluster], to: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Restore the run `second` into the target; killed between a ledger's entries and its end, and continued."""
    source, target = clusters
    with pytest.raises(InvalidArgument, match="is not empty, it has"):
        restore_cluster.job(spark, config(source, "r", backup=to))
    with monkeypatch.context() as faults:
        in_this_process(faults)
        crash_once(faults, Administration, "check_entries", after=False, skip=1)
        with pytest.raises(Crash):
            restore_cluster.job(spark, config(target, "r", backup=to, backup_run="second"))
    with pytest.raises(InvalidArgument, match=r"is half restored from .*second"):
        restore_cluster.job(spark, config(target, "r", backup=to, backup_run="first"))
    result = restore_cluster.complete(spark, config(target, "r2", backup=to, backup_run="second"))
    assert outcomes(result.frame) == {"done": 7}
    assert result.report.is_good
    found = verify.complete(spark, config(target, "v2", backup=to, backup_run="second", in_cluster=True))
    assert (outcomes(found.frame), found.report.is_good) == ({"done": 6}, True)
    with pytest.raises(InvalidArgument, match="is not empty, it has"):
        restore_cluster.job(spark, config(target, "again", backup=to, backup_run="second"))


def damaged_and_pruned(spark: Any, source: LocalCluster, to: str) -> None:
    """A damaged file is found; a missing one is copied again; older runs go when they are not kept."""
    root = backup_root(to)
    lost = verify.complete(spark, config(source, "lost", backup=to, backup_run="first", in_cluster=True))
    assert outcomes(lost.frame) == {"done": 4, "failed": 1}
    assert "the cluster has no such ledger" in str(lost.frame.toArrow().to_pylist())
    files = sorted(pathlib.Path(root).glob("ledger-*/*/part-*.parquet"))
    largest = max(files, key=lambda path: path.stat().st_size)
    data = bytearray(largest.read_bytes())
    data[len(data) // 2] ^= 1
    largest.write_bytes(data)
    found = verify.complete(spark, config(None, "v", backup=to))
    assert not found.report.is_good
    assert outcomes(found.frame)["failed"] == 1
    largest.unlink()
    third = backup.complete(spark, config(source, "third", to=to, keep=1, sweep_after="0s"))
    assert outcomes(third.frame)["copied"] >= 1
    assert [run.run for run in backup_files.runs(root)] == ["third"]
    assert verify.complete(spark, config(None, "v3", backup=to)).report.is_good
