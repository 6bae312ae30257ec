"""What is known without reading: tables of counts and of lag. Called as Spark calls the source, over a real cluster."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from pyspark.sql.pandas.types import from_arrow_schema
from tests.fakes.spark_query import Row, batch, make, numbers, rows_of, source
from tests.live.spark_marks import SMALL_BOOKIES

from bookies.admin.cluster import LocalCluster
from bookies.errors import BookKeeperError
from bookies.spark.base.arrow import schema_of_ddl

pytestmark = [
    pytest.mark.live,
    # The workers of Spark go away without a word, so what the source caches in a process is never closed.
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas:FutureWarning"),
]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    directory = tmp_path_factory.mktemp("counts") / "bk-data"
    with LocalCluster(directory, 1, settings=SMALL_BOOKIES) as cluster:
        yield cluster


@pytest.fixture(scope="module", autouse=True)
def numbered(store: Any) -> Any:
    """Log "numbered" with ten and five rows in two ledgers."""
    return make(store, "numbered", 10, 0, 5)


@pytest.fixture
def uri(cluster: LocalCluster) -> dict[str, Any]:
    return {"bookkeeper.metadataServiceUri": cluster.metadata_uri}


def table(options: dict[str, Any]) -> list[Row]:
    """The rows of one of the tables."""
    made = source(options)
    reader = made.reader(schema=from_arrow_schema(schema_of_ddl(made.schema())))
    return rows_of(reader, reader.partitions())


def test_counts_are_those_of_a_query_with_the_same_options(store: Any, numbered: Any, uri: dict[str, Any]) -> None:
    with store.create(ensemble=1) as ledger:
        ledger.append_many([b"x"] * 7)
    for options in (
        {"subscribe": "numbered", "startingOffsets": '{"numbered": 3}', "endingOffsets": '{"numbered": 12}'},
        {"subscribe": "numbered", "limit": 12},
        {"ledger": ledger.ledger_id},
        {"assign": json.dumps({"logs": {"numbered": [8, 11]}, "ledgers": {str(ledger.ledger_id): [2, 4]}})},
    ):
        rows = batch(uri | options)
        told = table(uri | options | {"table": "summary"})
        assert sum(row["rows"] for row in told) == len(rows) > 0
        for row in told:
            own = [one for one in rows if one["log"] == row["log"]]
            assert (own[0]["offset"], own[-1]["offset"]) == (row["min_offset"], row["max_offset"])
            assert (own[0]["entry_id"], own[-1]["entry_id"]) == (row["first_entry_id"], row["last_entry_id"])
            assert {row["min_ledger_id"], row["max_ledger_id"]} <= {one["ledger_id"] for one in own}
    assert numbers(batch(uri | {"subscribe": "numbered", "limit": 12})) == list(range(12))


def test_a_table_of_counts_has_the_options_of_a_batch_query(uri: dict[str, Any]) -> None:
    for options, reason in (
        ({"subscribe": "numbered", "cursor": "c"}, "option cursor is for streams: use readStream"),
        ({"subscribe": "numbered", "ledgersPerPartition": 1}, "unknown option 'ledgersperpartition'"),
        ({}, "choose what to read with exactly one of"),
        ({"subscribe": "nowhere"}, "nowhere"),
    ):
        with pytest.raises(BookKeeperError, match=reason):
            table(uri | options | {"table": "summary"})
