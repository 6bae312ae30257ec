"""Streams over what does not stay: truncated, deleted, made again; and what keeps it where it is."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from tests.fakes.spark_query import Stream, append, batch, make, numbers, refusal

import bookies
import bookies.spark
from bookies.admin.cluster import LocalCluster
from bookies.errors import BookKeeperError
from bookies.protocol.log import Position

pytestmark = [
    pytest.mark.live,
    pytest.mark.filterwarnings("ignore::ResourceWarning"),  # see test_spark_source.py
    pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas:FutureWarning"),
]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with LocalCluster(tmp_path_factory.mktemp("loss") / "bk-data", 1) as cluster:
        yield cluster


@pytest.fixture
def uri(cluster: LocalCluster) -> dict[str, Any]:
    return {"bookkeeper.metadataServiceUri": cluster.metadata_uri, "startingOffsets": "earliest", "tailWaitMs": 0}


def gaps(rows: list[dict[str, Any]] | None) -> list[tuple[Any, ...]]:
    """(log, ledger, from, until, rows) of each."""
    assert rows is not None
    return [
        (row["log"], row["ledger_id"], row["gap"]["from_entry"], row["gap"]["until_entry"], row["gap"]["rows"])
        for row in rows
        if row["gap"] is not None
    ]


def values(rows: list[dict[str, Any]] | None) -> list[int]:
    return numbers([row for row in rows or [] if row["gap"] is None])


def again(store: Any, name: str, *sizes: int) -> Any:
    store.log(name).delete()
    return make(store, name, *sizes)


@pytest.mark.parametrize("is_now", [True, False])
def test_a_log_that_was_made_again_is_another_one(store: Any, uri: dict[str, Any], is_now: bool) -> None:
    name = f"remade-{is_now}"
    make(store, name, 10)
    options = uri | {"subscribe": name, "maxOffsetsPerTrigger": 7}
    query = Stream(options)
    assert numbers(query.trigger()) == list(range(7))
    again(store, name, 20, 5)
    restarted = Stream(options, query.checkpoint, committed=1)
    if is_now:
        restarted.prepare()
    with pytest.raises(BookKeeperError, match=f"log {name}: deleted while the query reads it"):
        restarted.trigger()
    tolerant = Stream(options | {"failOnDataLoss": "false"}, query.checkpoint, committed=1)
    if is_now:
        tolerant.prepare()
    batches = tolerant.drain()
    assert gaps([row for rows in batches for row in rows]) == [(name, None, 7, 7, None)]
    assert [number for rows in batches for number in values(rows)] == list(range(25))
    replayed = Stream(options | {"failOnDataLoss": "false"}, tolerant.checkpoint, committed=1)
    assert replayed.trigger() == batches[0]


def test_a_log_that_was_made_again_while_its_batch_was_planned(store: Any, uri: dict[str, Any]) -> None:
    make(store, "replanned", 10)
    query = Stream(uri | {"subscribe": "replanned"})
    query.trigger()
    again(store, "replanned", 10)
    with pytest.raises(BookKeeperError, match="log replanned: deleted while"):
        Stream(uri | {"subscribe": "replanned"}, query.checkpoint).trigger()
    tolerant = Stream(uri | {"subscribe": "replanned", "failOnDataLoss": "false"}, query.checkpoint)
    first, second = tolerant.drain()
    assert (gaps(first), values(first)) == ([("replanned", None, 0, 0, None)], [])
    assert values(second) == list(range(10))


def test_checkpoints_of_older_versions_know_no_tokens(store: Any, uri: dict[str, Any]) -> None:
    log = make(store, "older", 5)
    old = ['{"from": {"logs": {"older": [0, 0]}}, "logs": {"older": [1, 0]}, "v": 1}']
    query = Stream(uri | {"subscribe": "older"}, old)
    assert numbers(query.trigger()) == list(range(5))
    assert query.trigger() is None
    append(log, 5, 5)
    assert numbers(query.trigger()) == list(range(5, 10))
    assert query.position["tokens"] == {"older": log.manifest().token}


def test_what_a_deleted_ledger_still_had_is_a_gap(store: Any, uri: dict[str, Any]) -> None:
    with store.create(ensemble=1) as ledger:
        ledger.append_many([b"%d" % number for number in range(19)])
    kept = ledger.ledger_id
    writer = store.create(ensemble=1)
    lost = writer.ledger_id
    writer.append_many([b"%d" % number for number in range(19)])
    writer.append(b"so that what is before it is known to be confirmed")
    options = uri | {"ledgers": f"{kept},{lost}", "maxOffsetsPerTrigger": 8}
    query = Stream(options | {"failOnDataLoss": "false"})
    assert sorted(values(query.trigger())) == sorted([*range(4), *range(4)])
    store.delete(lost)
    rows = query.trigger()
    assert gaps(rows) == [(None, lost, 4, 19, 15)]
    assert rows is not None
    assert {row["ledger_id"] for row in rows if row["gap"] is None} == {kept}
    rest = query.drain()
    assert [gap for rows in rest for gap in gaps(rows)] == []
    assert values([row for rows in rest for row in rows])[-1] == 18
    after_restart = Stream(options | {"failOnDataLoss": "false"}, query.checkpoint[:1], committed=1)
    assert gaps(after_restart.trigger()) == [(None, lost, 4, 4, None)]  # How far it went nobody knows any more.
    with pytest.raises(BookKeeperError, match=f"ledger {lost}: deleted while the query reads it"):
        Stream(options, query.checkpoint[:1], committed=1).trigger()


def test_one_of_several_logs_is_deleted_between_two_runs(store: Any, uri: dict[str, Any]) -> None:
    make(store, "stays", 3)
    make(store, "goes", 3)
    options = uri | {"subscribe": "stays,goes", "failOnDataLoss": "false"}
    query = Stream(options)
    query.prepare()
    assert sorted(values(query.trigger())) == [0, 0, 1, 1, 2, 2]
    store.log("goes").delete()
    del options["tailWaitMs"]  # `load` plans a batch then, to see what there is.
    for appended in (False, True):
        if appended:
            append(store.log("stays"), 3, 2)
        restarted = Stream(options, query.checkpoint, committed=len(query.checkpoint))
        restarted.prepare()
        rows = [row for rows in restarted.drain() for row in rows]
        assert gaps(rows) == ([] if appended else [("goes", None, 0, 0, None)])
        assert values(rows) == ([3, 4] if appended else [])
    assert "there is no log goes" in refusal(options)
    with pytest.raises(BookKeeperError, match="there is no log goes"):
        Stream(options).trigger()


def test_logs_that_are_no_longer_subscribed_are_no_loss(store: Any, uri: dict[str, Any]) -> None:
    make(store, "wanted", 3)
    make(store, "unwanted", 3)
    query = Stream(uri | {"subscribe": "wanted,unwanted"})
    query.trigger()
    store.log("unwanted").delete()
    append(store.log("wanted"), 3, 1)
    assert numbers(Stream(uri | {"subscribe": "wanted"}, query.checkpoint, committed=1).trigger()) == [3]


def test_truncation_under_a_running_query(store: Any, uri: dict[str, Any]) -> None:
    log = make(store, "overtaken", 5, 5, 5, 5)
    options = uri | {"subscribe": "overtaken", "startingOffsets": "earliest", "maxOffsetsPerTrigger": 3}
    query = Stream(options)
    assert numbers(query.trigger()) == [0, 1, 2]
    log.truncate(Position(log.manifest().extents[2].ledger_id, 1))
    with pytest.raises(
        BookKeeperError, match=r"log overtaken: rows from \[0, 3\] on were truncated .* at \[2, 1\] \(row 11\)"
    ):
        query.trigger()
    tolerant = Stream(options | {"failOnDataLoss": "false"}, query.checkpoint[:1], committed=1)
    rows = [row for rows in tolerant.drain() for row in rows]
    assert rows[0]["gap"]["until_seq"] == 2
    assert numbers(rows[1:]) == list(range(11, 20))
    log.delete()
    with pytest.raises(BookKeeperError, match="log overtaken: deleted while the query reads it"):
        query.trigger()


def test_a_cursor_keeps_truncation_behind_the_query(store: Any, uri: dict[str, Any]) -> None:
    log = make(store, "kept", 5, 5, 5, 5)
    options = uri | {"subscribe": "kept", "startingOffsets": "earliest", "maxOffsetsPerTrigger": 7, "cursor": "etl"}
    query = Stream(options)
    query.trigger()
    extents = log.manifest().extents
    assert log.cursors()["etl"].position == Position(extents[0].ledger_id, 0)
    with pytest.raises(BookKeeperError, match="because of its cursors etl"):
        log.truncate(Position(extents[1].ledger_id, 0))
    query.trigger()  # commits what was before
    assert log.cursors()["etl"].position == Position(extents[1].ledger_id, 2)
    log.truncate(Position(extents[1].ledger_id, 2))
    assert len(query.drain()) == 1
    assert Stream(options, query.checkpoint, committed=len(query.checkpoint)).trigger() is None


def test_a_new_query_puts_the_cursor_back(store: Any, uri: dict[str, Any]) -> None:
    log = make(store, "second-life", 5, 5, 5, 5)
    extents = log.manifest().extents
    options = uri | {"subscribe": "second-life", "maxOffsetsPerTrigger": 7, "cursor": "etl"}
    first = Stream(options)
    first.drain()
    first.reader.commit(first.position)
    assert log.cursors()["etl"].position == Position(extents[3].ledger_id, 5)
    second = Stream(options)
    second.trigger()
    assert log.cursors()["etl"].position == Position(extents[0].ledger_id, 0)
    with pytest.raises(BookKeeperError, match="because of its cursors etl"):
        log.truncate(Position(extents[2].ledger_id, 0))
    assert sorted(number for rows in second.drain() for number in numbers(rows)) == list(range(7, 20))
    ahead = Stream(options | {"startingOffsets": "latest"})  # A cursor that is behind is moved by a commit only.
    assert ahead.trigger() == []
    assert log.cursors()["etl"].position == Position(extents[2].ledger_id, 4)


def test_a_cursor_that_is_put_back_too_late(store: Any, uri: dict[str, Any]) -> None:
    log = make(store, "too-late", 5, 5)
    extents = log.manifest().extents
    options = uri | {"subscribe": "too-late", "cursor": "etl", "startingOffsets": '{"too-late": 2}'}
    log.move_cursor("etl", Position(extents[1].ledger_id, 1))
    log.truncate(Position(extents[1].ledger_id, 1))
    with pytest.raises(BookKeeperError, match=r"rows from \[0, 0\] on were truncated .* Cursor etl protects the rows"):
        Stream(options).trigger()


def test_a_snapshot_is_read_exactly_or_not_at_all(store: Any, cluster: LocalCluster) -> None:
    uri = {"bookkeeper.metadataServiceUri": cluster.metadata_uri}
    log = make(store, "noted", 6, 4)
    make(store, "noted-too", 2)
    taken = bookies.spark.snapshot_logs(cluster.metadata_uri, "noted", "noted-too")
    options = uri | {"subscribe": "noted", "snapshot": taken}
    append(log, 10, 5)
    make(store, "noted-later", 1)
    assert numbers(batch(options)) == list(range(10))
    assert numbers(batch(options | {"limit": 7})) == list(range(7))
    both = batch(uri | {"subscribePattern": "noted.*", "snapshot": taken})
    assert sorted(numbers(both)) == sorted([*range(10), 0, 1])
    assert "option snapshot is of noted, noted-too, not of noted-later" in refusal(
        options | {"subscribe": "noted-later"}
    )
    assert "not of ledgers of a label" in refusal(uri | {"label": "team=a", "snapshot": taken})
    assert "option startingOffsets: the snapshot decides" in refusal(options | {"startingOffsets": "earliest"})
    assert "option snapshot='x': expected the text that snapshot_logs returns" in refusal(options | {"snapshot": "x"})
    log.truncate(Position(log.manifest().ledger_ids[1], 2), force=True)
    assert "log noted: rows 0 to 7 of the snapshot were truncated; the log now begins at row 8" in refusal(options)
    again(store, "noted", 20)
    assert "log noted was deleted and created again since the snapshot" in refusal(options)
    log.delete()
    assert "there is no log noted" in refusal(uri | {"subscribePattern": "noted.*", "snapshot": taken})


def test_a_compaction_after_a_snapshot_is_reported(store: Any, cluster: LocalCluster) -> None:
    log = store.log("compacted-later")
    log.create(ensemble=1, record_format="envelope", compaction="key")
    with log.lead() as writer:
        for number in range(3):
            writer.append(bookies.Record(b"%d" % number, b"k"))
            writer.roll()
    options: dict[str, Any] = {"bookkeeper.metadataServiceUri": cluster.metadata_uri, "subscribe": log.name}
    early = bookies.spark.snapshot_logs(cluster.metadata_uri, log.name)
    assert numbers(batch(options | {"snapshot": early})) == [0, 1, 2]
    assert log.compact().removed == 2
    assert "a compaction has removed rows between 0 and 2 since the snapshot" in refusal(options | {"snapshot": early})
    late = bookies.spark.snapshot_logs(cluster.metadata_uri, log.name)
    assert numbers(batch(options | {"snapshot": late})) == [2]
