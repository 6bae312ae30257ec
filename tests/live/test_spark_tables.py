"""Tables of Spark for logs, and tables of Delta Lake and Iceberg that follow a log. A real session, a real cluster."""

from __future__ import annotations

import pathlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.fakes.spark_query import make
from tests.live.spark_marks import SMALL_BOOKIES, SPARK_MARKS, needs_spark, persistently

import bookies.spark
from bookies.admin.cluster import LocalCluster
from bookies.errors import InvalidArgument

pytestmark = [*SPARK_MARKS, needs_spark(4, 2), pytest.mark.usefixtures("without_adaptive_execution")]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with LocalCluster(tmp_path_factory.mktemp("tables") / "bk-data", 1, settings=SMALL_BOOKIES) as cluster:
        yield cluster


@pytest.fixture
def sql(spark: Any) -> Iterator[Callable[[str], list[Any]]]:
    """Return the rows of a statement. At the end the databases of the test are deleted."""
    yield lambda text: [tuple(row) for row in spark.sql(text).collect()]
    for database in ("shop", "other"):
        spark.sql(f"DROP DATABASE IF EXISTS {database} CASCADE")


def done(changes: list[Any]) -> dict[str, str]:
    assert all(change.reason == "" for change in changes)
    return {change.table: change.action for change in changes}


@pytest.mark.versions
def test_tables_of_logs_are_listed_read_and_written(
    spark: Any, store: Any, cluster: LocalCluster, sql: Any, tmp_path: pathlib.Path
) -> None:
    def register(**options: Any) -> dict[str, str]:
        return done(bookies.spark.register_logs(spark, "shop", cluster.metadata_uri, **options))

    make(store, "shop.Orders", 5)
    store.log("shop-kept").create(ensemble=1, record_format="envelope")
    chosen = {"subscribePattern": "shop.*"}
    both = {"shop_kept": "created", "shop_orders": "created"}
    assert register(**chosen, dry_run=True) == both
    assert not spark.catalog.databaseExists("shop")
    assert register(**chosen) == both
    assert sql("SHOW TABLES IN shop") == [("shop", "shop_kept", False), ("shop", "shop_orders", False)]
    assert spark.table("shop.shop_orders").columns == ["log", "ledger_id", "entry_id", "offset", "value"]
    assert sql("SELECT max(offset), first(log) FROM shop.shop_orders") == [(4, "shop.Orders")]

    # An insertion repeats nothing under the name of its batch, and the next query has its rows.
    for _ in range(2):
        sql("INSERT INTO shop.shop_orders WITH (txnAppId='a', txnVersion='1') (value) VALUES (CAST('5' AS BINARY))")
    assert sql("SELECT count(*), max(CAST(value AS STRING)) FROM shop.shop_orders") == [(6, "5")]
    assert sql("""SELECT count(*) FROM shop.shop_orders WITH (endingOffsets='{"shop.Orders": 2}')""") == [(2,)]
    with pytest.raises(Exception, match=r"column 'log': log shop\.Orders computes it.*INSERT INTO table \(value\)"):
        sql("INSERT INTO shop.shop_orders SELECT * FROM shop.shop_orders")

    def stream() -> None:
        orders = spark.readStream.option("startingOffsets", "earliest").table("shop.shop_orders")
        sink = orders.selectExpr("CAST(CAST(offset AS STRING) AS BINARY) key", "value").writeStream.trigger(
            availableNow=True
        )
        sink.option("checkpointLocation", str(tmp_path / "checkpoint")).toTable("shop.shop_kept").awaitTermination()

    persistently(stream)
    assert sql("SELECT count(key), count(offset) FROM shop.shop_kept") == [(6, 6)]

    # What changed, and only that, is done again.
    assert register(**chosen) == {"shop_kept": "unchanged", "shop_orders": "unchanged"}
    store.log("shop-kept").delete()
    assert register(**chosen, valueFormat="utf8", dry_run=True) == {"shop_kept": "dropped", "shop_orders": "replaced"}
    assert sql("SELECT value FROM shop.shop_orders WHERE offset = 4") == [(b"4",)]
    with pytest.raises(Exception, match="there is no log shop-kept"):
        sql("SELECT * FROM shop.shop_kept")
    assert register(**chosen, valueFormat="utf8") == {"shop_kept": "dropped", "shop_orders": "replaced"}
    assert sql("SELECT value FROM shop.shop_orders WHERE offset = 4") == [("4",)]
    assert sql("SHOW TABLES IN shop") == [("shop", "shop_orders", False)]


def test_what_spark_keeps_and_does_not_pass(spark: Any, store: Any, cluster: LocalCluster, sql: Any) -> None:
    """Should one of these work some day, docs/reference/spark-tables.md can be shorter."""
    make(store, "versions", 3)
    sql("CREATE DATABASE other")
    sql("CREATE TABLE other.versions (a INT) USING parquet")
    with pytest.raises(InvalidArgument, match=r"log versions: other\.versions is another table: drop it, or choose"):
        bookies.spark.register_logs(spark, "other", cluster.metadata_uri, subscribePattern="versions")
    chosen = {"versions": "renamed"}
    bookies.spark.register_logs(spark, "other", cluster.metadata_uri, subscribePattern="versions", tables=chosen)
    assert sql("SELECT count(*) FROM other.renamed") == [(3,)]
    for version in ("VERSION AS OF 2", "TIMESTAMP AS OF '2026-01-01'"):
        with pytest.raises(Exception, match="TIME_TRAVEL"):
            sql(f"SELECT * FROM other.renamed {version}")
    assert sql("SHOW TBLPROPERTIES other.renamed") == []


def test_tables_of_delta_lake_and_iceberg_follow_a_log(
    spark: Any, store: Any, cluster: LocalCluster, tmp_path: pathlib.Path
) -> None:
    """The driver stops after a commit, before Spark notes the batch. One table has every row, one has the last."""
    store.log("changes").create(ensemble=1, record_format="envelope")
    catalog = {"type": "sql", "uri": f"sqlite:///{tmp_path}/catalog.db", "warehouse": f"file://{tmp_path}"}
    delta = bookies.spark.delta_sink(str(tmp_path / "changes"))
    iceberg = bookies.spark.iceberg_sink("shop.changes", catalog=catalog, key=["key"], tombstone="value")

    def append(*changes: tuple[bytes, bytes | None]) -> None:
        with store.log("changes").lead() as leader:
            leader.append_many([bookies.Record(value, key=key) for key, value in changes])

    def stopping(batch: Any, number: int) -> None:
        delta(batch, number)
        iceberg(batch, number)
        raise OSError("the driver stops")

    def both(batch: Any, number: int) -> None:
        delta(batch, number)
        iceberg(batch, number)

    def run(each: Callable[[Any, int], None]) -> None:
        reader = spark.readStream.format("bookkeeper").option("bookkeeper.metadataServiceUri", cluster.metadata_uri)
        changes = reader.option("subscribe", "changes").option("startingOffsets", "earliest").load()
        writer = changes.select("offset", "key", "value").writeStream.foreachBatch(each).trigger(availableNow=True)
        writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start().awaitTermination()

    bookies.spark.register(spark)
    append((b"a", b"1"), (b"b", b"2"), (b"a", b"3"))
    with pytest.raises(Exception, match="the driver stops"):
        persistently(lambda: run(stopping))
    append((b"b", None), (b"c", b"4"))
    persistently(lambda: run(both))
    import deltalake
    import pyiceberg.catalog

    rows = deltalake.DeltaTable(str(tmp_path / "changes")).to_pyarrow_table().sort_by("offset").to_pydict()
    assert rows["offset"] == [0, 1, 2, 3, 4]
    assert rows["value"] == [b"1", b"2", b"3", None, b"4"]
    kept = (
        pyiceberg.catalog.load_catalog("default", **catalog).load_table("shop.changes").scan().to_arrow().sort_by("key")
    )
    assert kept.to_pydict() == {"offset": [2, 4], "key": [b"a", b"c"], "value": [b"3", b"4"]}
