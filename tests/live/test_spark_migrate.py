"""Two clusters: ledgers and logs move from one to the other, through crashes, while the source is written."""

from __future__ import annotations

import pathlib
from collections.abc import Iterator
from typing import Any

import pytest
from tests.live.copied_ledgers import content, log_values, sealed_ledgers
from tests.live.job_faults import Crash, crash_once, in_this_process
from tests.live.spark_marks import PANDAS_MARKS, SMALL_BOOKIES

import bookies as bk
from bookies.admin.cluster import LocalCluster
from bookies.client.client import Client
from bookies.client.repair import Administration
from bookies.client.write.manifest import ManifestLoop
from bookies.errors import InvalidArgument, LedgerFenced, LogFenced
from bookies.spark.jobs import migrate
from bookies.spark.jobs.shared import common
from bookies.spark.jobs.shared.common import JobConfig

pytestmark = PANDAS_MARKS


@pytest.fixture(scope="module")
def clusters(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[LocalCluster, LocalCluster]]:
    directory = tmp_path_factory.mktemp("migrate")
    with (
        LocalCluster(directory / "old", 3, settings=SMALL_BOOKIES) as source,
        LocalCluster(directory / "new", 3, settings=SMALL_BOOKIES) as target,
    ):
        common.ask(source.metadata_uri, spend_numbers)
        yield source, target


async def spend_numbers(client: Client) -> None:
    """The source's ledgers have numbers that the target does not give to ledgers of its own in these tests."""
    for _ in range(100):
        await client.transactions().driver.next_ledger_id()


@pytest.fixture(scope="module")
def stores(clusters: tuple[LocalCluster, LocalCluster]) -> Iterator[tuple[bk.blocking.Client, bk.blocking.Client]]:
    with (
        bk.blocking.connect(clusters[0].metadata_uri) as source,
        bk.blocking.connect(clusters[1].metadata_uri) as target,
    ):
        yield source, target


def config(clusters: Any, run_id: str, **options: Any) -> JobConfig:
    mode = options.pop("mode", common.RUN)
    chosen = {"target": clusters[1].metadata_uri} | options
    return JobConfig(clusters[0].metadata_uri, run_id, mode, None, chosen, is_quiet=True)


def mapping(frame: Any) -> dict[int, int]:
    rows = frame.toArrow().to_pylist()
    assert all(row["outcome"] == "done" for row in rows if row["kind"] == "ledger"), rows
    return {int(row["source"]): int(row["target"]) for row in rows if row["kind"] == "ledger"}


@pytest.mark.parametrize("map_ids", [False, True])
def test_ledgers_arrive_as_they_were(spark: Any, clusters: Any, stores: Any, map_ids: bool) -> None:
    source, target = stores
    ids = sealed_ledgers(source, 1)
    asked = {"ledgers": ",".join(map(str, ids)), "map_ids": map_ids}
    dry = migrate.job(spark, config(clusters, f"dry-{map_ids}", mode=common.DRY_RUN, **asked))
    assert dry.count() == len(ids)
    moved = mapping(migrate.job(spark, config(clusters, f"first-{map_ids}", **asked)))
    assert list(moved) == ids
    assert map_ids or all(old == new for old, new in moved.items())
    for old, new in moved.items():
        assert content(target, new) == content(source, old)
        there, here = target.metadata(new), source.metadata(old)
        assert (there.digest_type, there.write_quorum, there.length) == (
            here.digest_type,
            here.write_quorum,
            here.length,
        )
        assert there.custom_metadata["owner"] == b"me"
        assert target.administration().check_ledger(new, percentage=100).is_ok
    count = len(list(target.ledgers()))
    assert mapping(migrate.job(spark, config(clusters, f"again-{map_ids}", **asked))) == moved
    assert len(list(target.ledgers())) == count


STEPS = [
    (Client, "create", False, 1),
    (Administration, "write_entries", False, 1),
    (Administration, "check_entries", False, 1),
    (Administration, "change_record", False, 1),
    (Administration, "change_record", True, 1),
    (ManifestLoop, "update", False, 0),
    (ManifestLoop, "update", True, 0),
    (common, "save", False, 0),
]


@pytest.mark.parametrize(("owner", "name", "after", "skip"), STEPS, ids=str)
def test_a_log_moves_through_a_crash_at_any_step(
    spark: Any,
    clusters: Any,
    stores: Any,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
    owner: Any,
    name: str,
    after: bool,
    skip: int,
) -> None:
    in_this_process(monkeypatch)
    source, target = stores
    log = f"log-{STEPS.index((owner, name, after, skip))}"
    expected: list[bytes] = []
    source.log(log).create(ensemble=2)
    for part in range(3):
        with source.log(log).lead() as leader:
            batch = [b"%d/%d" % (part, number) for number in range(20)]
            leader.append_many(batch)
            expected += batch
    if owner is ManifestLoop:
        assert source.log(log).roll_up().left == 1  # Positions in the target get ids that no ledger has.
    asked = config(clusters, log, log=log, cut_over=False)
    with monkeypatch.context() as faulty:
        crash_once(faulty, owner, name, after=after, skip=skip)
        with pytest.raises(Crash):
            migrate.job(spark, asked)
    migrate.job(spark, asked)
    assert log_values(target, log) == expected
    with pytest.raises(LogFenced, match="being migrated"):
        target.log(log).lead().__enter__()
    with source.log(log).lead() as leader:  # the source is in use all the time
        leader.append(b"later")
    source.log(log).roll_up()
    over = config(clusters, f"{log}-over", log=log, cut_over=True)
    with monkeypatch.context() as faulty:
        crash_once(faulty, owner, name, after=after, skip=0)
        with pytest.raises(Crash):
            migrate.job(spark, over)
    migrate.job(spark, over)
    assert log_values(target, log) == [*expected, b"later"]
    moved = target.log(log).manifest()
    assert (len({*moved.ledger_ids}), len({*moved.storages})) == (4, 2 if owner is ManifestLoop else 1)
    with pytest.raises(LogFenced, match="was moved to"):
        source.log(log).lead().__enter__()
    with target.log(log).lead() as leader:
        leader.append(b"at home")
    migrate.job(spark, config(clusters, f"{log}-late", log=log, cut_over=True))
    assert log_values(target, log) == [*expected, b"later", b"at home"]
    labels = [
        each.custom_metadata["migrated.from"] for each in target.ledgers() if "migrated.from" in each.custom_metadata
    ]
    assert len(labels) == len(set(labels))


def test_a_leader_is_stopped_by_the_cut_over_and_loses_nothing(spark: Any, clusters: Any, stores: Any) -> None:
    source, target = stores
    source.log("busy").create(ensemble=2)
    leader = source.log("busy").lead().__enter__()
    acknowledged = []
    for number in range(50):
        leader.append(b"%d" % number)
        acknowledged.append(b"%d" % number)
    report = migrate.complete(spark, config(clusters, "busy", log="busy", cut_over=True)).report
    assert report.is_good
    with pytest.raises((LogFenced, LedgerFenced)):
        leader.append(b"too late")
    leader.__exit__(LogFenced, None, None)
    assert log_values(target, "busy") == acknowledged
    assert log_values(source, "busy") == acknowledged


def test_what_cannot_be_done_is_told_in_a_sentence(
    spark: Any, clusters: Any, stores: Any, tmp_path: pathlib.Path
) -> None:
    source, target = stores
    with pytest.raises(InvalidArgument, match="option target is missing"):
        migrate.job(spark, JobConfig(clusters[0].metadata_uri, is_quiet=True))
    with pytest.raises(InvalidArgument, match="are the same cluster"):
        migrate.job(spark, config((clusters[0], clusters[0]), "self"))
    with pytest.raises(InvalidArgument, match="cut_over is for logs"):
        migrate.job(spark, config(clusters, "cut", cut_over=True))
    source.log("taken").create()
    target.log("taken").create()
    with source.log("taken").lead() as leader:
        leader.append(b"x")
    found = migrate.complete(spark, config(clusters, "taken", log="taken"))
    assert not found.report.is_good
    assert "no copy of it" in found.frame.where("kind = 'log'").collect()[0]["detail"]


def test_the_cluster_that_lacks_bookies_is_named(
    spark: Any, clusters: Any, stores: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
) -> None:
    in_this_process(monkeypatch)
    with stores[0].create(ensemble=3) as ledger:
        ledger.append(b"x")
    with LocalCluster(tmp_path / "small", 1, settings=SMALL_BOOKIES) as small:
        chosen = {"target": small.metadata_uri, "ledgers": str(ledger.ledger_id)}
        asked = JobConfig(clusters[0].metadata_uri, "small", common.RUN, None, chosen, is_quiet=True)
        [row] = migrate.job(spark, asked).toArrow().to_pylist()
    assert row["outcome"] == "failed"
    assert row["detail"].startswith("target cluster: ensemble=3 needs 3 writable bookies")
