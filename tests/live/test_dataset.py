"""`bookies.dataset`: the rows of Spark's source for other libraries, over a real cluster and without Spark."""

from __future__ import annotations

import datetime
import json
import pathlib
import re
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from tests.fakes.spark_query import append, batch, make
from tests.live.spark_marks import SMALL_BOOKIES

import bookies as bk
from bookies.admin.cluster import LocalCluster
from bookies.formats import Payloads, checked_by

pytestmark = [
    pytest.mark.live,
    # The clients of a process's datasets live as long as the process.
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]
ROOT = pathlib.Path(__file__).parents[2]
CELLS = """
import json, sys
sys.modules["pyspark"] = None  # An import fails.
cells = json.load(open(sys.argv[1]))["cells"]
names = {}
for number, cell in enumerate(cells):
    if cell["cell_type"] == "code":
        exec(compile("".join(cell["source"]), f"cell {number}", "exec"), names)
print(json.dumps([names["sales"].count_rows(), len(names["last"]), names["last"]["key"].nunique()]))
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    directory = tmp_path_factory.mktemp("dataset") / "bk-data"
    with LocalCluster(directory, 1, settings=SMALL_BOOKIES) as cluster:
        yield cluster


@pytest.fixture
def uri(cluster: LocalCluster) -> str:
    return cluster.metadata_uri


def numbers(rows: bk.Dataset | pa.Table) -> list[int]:
    table = rows if isinstance(rows, pa.Table) else rows.to_table(["value"])
    return [int(value) for value in table["value"].to_pylist()]


# -- rows ------------------------------------------------------------------------------------------------------------


def test_the_rows_are_those_of_the_source_in_order(store: Any, uri: str) -> None:
    log = make(store, "ordered", *[7] * 9)
    make(store, "other", 5)
    source = {"bookkeeper.metadataServiceUri": uri}
    for options in (
        {"subscribe": "ordered", "includeMetadata": "true"},
        {"subscribe": "other,ordered", "maxRecordsPerPartition": "3"},
        {"ledger": str(log.manifest().ledger_ids[2]), "includeValue": "false"},
        {"subscribe": "ordered", "limit": "20"},
    ):
        rows = bk.dataset(uri, **options)
        table = rows.to_table()
        told = batch(source | options)
        if "ordered" in options.get("subscribe", ""):
            told.sort(key=lambda row: (row["log"] == "ordered", row["offset"]))
        assert table.to_pylist() == told
        assert (rows.count_rows(), table.schema) == (len(told), rows.schema)


def test_payloads_are_text_on_request(store: Any, uri: str) -> None:
    make(store, "texts", 3)
    rows = bk.dataset(uri, "texts", columns=["value"], valueFormat="utf8")
    assert rows.to_table().to_pydict() == {"value": ["0", "1", "2"]}
    assert bk.dataset(uri, "texts", columns=["offset"], valueFormat="utf8").schema.names == ["offset"]


def test_bounds_are_rows_positions_and_times(store: Any, uri: str) -> None:
    log = make(store, "bounds", 10, 5)
    second = log.manifest().ledger_ids[1]
    assert numbers(bk.dataset(uri, "bounds", start=3, end=12)) == list(range(3, 12))
    assert numbers(bk.dataset(uri, "bounds", start=f"{second}:2")) == [12, 13, 14]
    now = datetime.datetime.now(datetime.UTC)
    assert numbers(bk.dataset(uri, "bounds", start=now - datetime.timedelta(hours=1), end=now)) == list(range(15))
    assert numbers(bk.dataset(uri, "bounds", end=now - datetime.timedelta(hours=1))) == []


def test_a_dataset_is_a_snapshot_that_is_read_again(store: Any, uri: str) -> None:
    log = make(store, "snapshot", 10)
    rows = bk.dataset(uri, "snapshot", columns=["value"])
    append(log, 10, 5)
    assert numbers(rows) == numbers(rows) == list(range(10))
    assert rows.count_rows() == 10
    assert bk.dataset(uri, "snapshot").count_rows() == 15
    assert repr(rows) == "<Dataset of snapshot: value>"


def test_rows_are_counted_by_reading_where_an_entry_is_not_one(store: Any, uri: str) -> None:
    sets = store.log("sets")
    sets.create(ensemble=1, record_format="sets")
    with sets.lead() as writer:
        writer.append_many([b"%d" % number for number in range(50)])
    assert bk.dataset(uri, "sets").count_rows() == 50
    keyed = store.log("keyed")
    keyed.create(ensemble=1, record_format="envelope", compaction="key")
    with keyed.lead() as writer:
        for _ in range(3):
            writer.append_many([bk.Record(b"%d" % number, b"%d" % (number % 5)) for number in range(20)])
            writer.roll()
    keyed.compact()
    rows = bk.dataset(uri, "keyed")
    assert rows.count_rows() == len(numbers(rows)) == 5
    mixed = make(store, "mixed")
    with mixed.lead() as writer:
        writer.append_many([b'{"id": 1}', b"no", b'{"id": 3}'])
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False)])
    options = {"valueFormat": "json", "schema": schema, "columns": ["offset", "value"]}
    assert bk.dataset(uri, "mixed", **options).count_rows() == 3
    good = bk.dataset(uri, "mixed", mode="DROPMALFORMED", **options)
    assert good.count_rows() == 2
    assert good.to_table(["offset"]).to_pydict() == {"offset": [0, 2]}
    assert good.to_table(["id"]).to_pydict() == {"id": [1, 3]}


def test_payloads_have_the_columns_that_their_schema_or_a_sample_shows(store: Any, uri: str) -> None:
    described = make(store, "described")
    schema = json.dumps({"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}]})
    kept = described.add_schema("avro", schema, checked_by("avro", schema))
    orders = Payloads("avro", schema, is_framed=True, id=kept.id)
    with described.lead() as writer:
        writer.append_many(orders.encode(pa.table({"id": range(5)})).to_pylist())
    assert bk.dataset(uri, "described", columns=["value"], valueFormat="avro").to_table().to_pylist() == [
        {"id": number} for number in range(5)
    ]
    plain = make(store, "plain")
    with plain.lead() as writer:
        writer.append_many([b'{"id": 1}', b'{"name": "x"}'])
    options = {"columns": ["value"], "valueFormat": "json"}
    inferred = bk.dataset(uri, "plain", **options)
    assert inferred.to_table().to_pylist() == [{"id": 1, "name": None}, {"id": None, "name": "x"}]
    named = bk.dataset(uri, "plain", valueSchema="name STRING", **options)
    assert named.to_table().to_pylist() == [{"name": None}, {"name": "x"}]


def test_large_rows_come_in_batches_and_the_rest_can_be_left(store: Any, uri: str) -> None:
    log = make(store, "large")
    with log.lead() as writer:
        writer.append_many([bytes([number]) * (1 << 20) for number in range(24)])
    rows = bk.dataset(uri, "large", columns=["value"], readBatchBytes="2m", readAheadBytes="4m")
    sizes = [each.nbytes for each in rows.reader()]
    assert len(sizes) >= 8
    assert max(sizes) < 4 << 20
    with rows.reader() as reader:
        assert reader.read_next_batch()["value"][0].as_py() == bytes(1 << 20)
    assert rows.count_rows() == 24


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"log": "nowhere"}, "there is no log nowhere"),
        ({}, "choose what to read with exactly one of"),
        ({"ledger": 1, "start": 5}, "starting: a row or position is of one log"),
        ({"log": "ordered", "start": datetime.datetime(2026, 1, 1)}, "a time without a time zone"),
        ({"log": "ordered", "start": 1000}, "has 63 rows so far"),
        ({"log": "ordered", "columns": ["offset", "nothing"]}, "no column 'nothing'"),
        ({"log": "ordered", "table": "lag"}, "option table is for Spark"),
        ({"log": "ordered", "valueFormat": "json"}, "give them with option valueSchema"),
        ({"log": "ordered", "valueFormat": "avro"}, "avro needs a schema, and log ordered has none"),
        ({"log": "ordered", "valueFormat": "avro", "schema": pa.schema([])}, "has columns of its own; leave it out"),
        ({"log": "ordered", "schema": pa.schema([])}, "valueFormat=raw has the column value"),
        (
            {"log": "ordered", "valueFormat": "json", "schema": pa.schema([("offset", pa.int64())])},
            "the source itself has a column 'offset'",
        ),
    ],
)
def test_what_is_refused(uri: str, options: dict[str, Any], reason: str) -> None:
    with pytest.raises(bk.BookKeeperError, match=reason):
        bk.dataset(uri, options.pop("log", None), **options)


def test_columns_that_a_dataset_does_not_have_are_refused(store: Any, uri: str) -> None:
    with pytest.raises(bk.InvalidArgument, match="no column 'key'; there are offset, value"):
        bk.dataset(uri, "ordered", columns=["value", "offset"]).reader(["key"])


# -- other libraries -------------------------------------------------------------------------------------------------


def test_the_snippets_of_the_page_run(store: Any, uri: str) -> None:
    pytest.importorskip("duckdb")
    log = make(store, "orders")
    with log.lead() as writer:
        writer.append_many([b'{"id": %d, "amount": %d}' % (number, number % 10) for number in range(1000)])
    page = (ROOT / "docs" / "howto" / "read-with-duckdb.md").read_text()
    names: dict[str, Any] = {"uri": uri}
    for snippet in re.findall(r"^```python\n(.*?)^```$", page, re.DOTALL | re.MULTILINE):
        exec(compile(snippet, "read-with-duckdb.md", "exec"), names)
    assert len(names["result"].fetchall()) == 10  # The query reads again.


def test_polars_reads_a_dataset(store: Any, uri: str) -> None:
    polars = pytest.importorskip("polars")  # 180 MB: no part of the development tools
    frame = polars.DataFrame(bk.dataset(uri, "ordered", columns=["offset"]))
    assert frame["offset"].to_list() == list(range(63))


def test_the_notebook_runs_without_spark() -> None:
    pytest.importorskip("duckdb")
    pytest.importorskip("pandas")
    words = [sys.executable, "-c", CELLS, str(ROOT / "examples" / "notebook" / "orders.ipynb")]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == [3000, 100, 100]
