"""Payload formats of Spark's source and sink on a real cluster: kept schemas, a registry, evolution, bad input.

The source and the sink are called as Spark calls them. One test has a session.
"""

from __future__ import annotations

import base64
import json
import pathlib
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorSet
from tests.fakes.protobuf_files import ORDER, file_of, set_of
from tests.fakes.registry import FakeRegistry, fake_registry
from tests.fakes.spark_query import Row, Stream, batch, refusal, save, source
from tests.live.spark_marks import SMALL_BOOKIES

from bookies.admin.cluster import LocalCluster
from bookies.errors import InvalidArgument, LogNotFound, SchemaIncompatible, SchemaRegistryFailed
from bookies.formats import Payloads, registry
from bookies.formats.columns import parse_ddl
from bookies.spark.base.arrow import COLUMNS

pytestmark = [
    pytest.mark.live,
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas:FutureWarning"),
]
Options = dict[str, Any]
ROWS = pa.table(
    {
        "id": pa.array([1, 2], pa.int64()),
        "customer": ["a", None],
        "tags": pa.array([["x", None], []], pa.list_(pa.string())),
    }
)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with LocalCluster(tmp_path_factory.mktemp("formats") / "bk-data", 1, settings=SMALL_BOOKIES) as cluster:
        yield cluster


@pytest.fixture
def uri(cluster: LocalCluster) -> Options:
    return {"bookkeeper.metadataServiceUri": cluster.metadata_uri}


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[FakeRegistry, str]]:
    monkeypatch.setattr(registry, "sleep", lambda seconds: None)
    with fake_registry() as served:
        yield served


def sink(uri: Options, log: str, value_format: str, **more: Any) -> Options:
    return uri | {"log": log, "createLog": "true", "ensembleSize": 1, "valueFormat": value_format} | more


def reading(uri: Options, log: str, value_format: str, **more: Any) -> Options:
    return uri | {"subscribe": log, "valueFormat": value_format, "columns": "offset,value"} | more


def payload_fields(options: Options) -> list[pa.Field]:
    """What Spark makes of the DDL that the source says."""
    return [
        field for field in parse_ddl(source(options).schema()) if field.name not in COLUMNS or field.name == "value"
    ]


def read(options: Options) -> list[Row]:
    return [{name: row[name] for name in row if name != "offset"} for row in batch(options, payload_fields(options))]


def record(**fields: Any) -> str:
    return json.dumps({"type": "record", "name": "R", "fields": [{"name": name} | one for name, one in fields.items()]})


@pytest.mark.parametrize("value_format", ["avro", "json", "arrow"])
def test_columns_there_and_back_and_evolution(
    store: Any, uri: Options, value_format: str, caplog: pytest.LogCaptureFixture
) -> None:
    log = f"evolving-{value_format}"
    save(sink(uri, log, value_format), ROWS)
    options = reading(uri, log, value_format)
    assert read(options) == ROWS.to_pylist()
    assert '"rows": 2' in caplog.text  # in the task log, also where two are one entry
    save(sink(uri, log, value_format), ROWS)  # The same schema has no second version.
    assert len(store.log(log).schemas().versions) == 1
    old_query = Stream(options | {"startingOffsets": "earliest"}, fields=payload_fields(options))
    assert len(old_query.drain()[0]) == 4
    newer = ROWS.append_column("more", pa.array([7, 8], pa.int32()))
    save(sink(uri, log, value_format), newer)
    assert [version.id for version in store.log(log).schemas().versions] == [1, 2]
    expected = [*ROWS.to_pylist(), *ROWS.to_pylist()]
    assert read(options) == [*({**row, "more": None} for row in expected), *newer.to_pylist()]
    save(sink(uri, log, value_format), newer.select(["more", "id"]))  # Fewer columns are no new schema.
    assert len(store.log(log).schemas().versions) == 2
    assert read(options)[-1] == {"id": 2, "customer": None, "tags": None, "more": 8}
    # The running query has the schema of its start, and reads what the new one wrote.
    assert [row["id"] for row in old_query.drain()[0]] == [1, 2, 1, 2]
    wrong = pa.table({"id": ["x"], "customer": ["a"], "tags": pa.array([None], pa.list_(pa.string()))})
    with pytest.raises(SchemaIncompatible, match="the new schema cannot read rows of version 1: id is"):
        save(sink(uri, log, value_format), wrong)
    save(sink(uri, log, value_format, compatibility="none"), wrong)
    assert store.log(log).schemas().compatibility == "none"


def test_an_incompatible_schema_stops_a_query(uri: Options, store: Any) -> None:
    save(sink(uri, "turned", "avro"), ROWS)
    options = reading(uri, "turned", "avro")
    query = Stream(options | {"startingOffsets": "earliest"}, fields=payload_fields(options))
    assert query.drain()
    save(sink(uri, "turned", "avro", compatibility="none"), pa.table({"id": ["x"]}))
    ledger = store.log("turned").manifest().extents[-1].ledger_id
    with pytest.raises(SchemaIncompatible, match=rf"log turned: .* id is string .* \(ledger {ledger}, entry 0\)"):
        query.drain()


@pytest.mark.parametrize("value_format", ["avro", "json", "arrow"])
def test_a_field_with_a_name_of_the_source_is_another_column(uri: Options, value_format: str) -> None:
    save(sink(uri, f"names-{value_format}", value_format), pa.table({"offset": [7, None], "Gap": [1, 2]}))
    options = reading(uri, f"names-{value_format}", value_format)
    assert read(options) == [{"value_offset": 7, "value_Gap": 1}, {"value_offset": None, "value_Gap": 2}]


def test_fields_of_a_sample_with_names_of_the_source(uri: Options, store: Any) -> None:
    log = store.log("names-sampled")
    log.create(ensemble=1)
    with log.lead() as writer:
        writer.append_many([b'{"timestamp": "t", "id": 1}', b"no", b'{"id": 2, "timestamp": "u", "none": {}}'])
    options = reading(uri, "names-sampled", "json", columns="entry_id,timestamp,value")
    rows = [(row["entry_id"], row["timestamp"], row["value_timestamp"], row["id"]) for row in read(options)]
    assert rows == [(0, None, "t", 1), (1, None, None, None), (2, None, "u", 2)]


def test_each_log_has_ids_of_its_own(uri: Options) -> None:
    save(sink(uri, "own-a", "avro"), pa.table({"x": [1], "y": [2]}))
    save(sink(uri, "own-b", "avro"), pa.table({"y": [20], "x": [10]}))
    options = reading(uri, "own-a,own-b", "avro")
    assert read(options) == [{"x": 1, "y": 2}, {"x": 10, "y": 20}]


def test_protobuf_with_descriptors_in_a_file(uri: Options, tmp_path: pathlib.Path) -> None:
    (tmp_path / "shop.desc").write_bytes(set_of(ORDER))
    rows = pa.table({"customer": ["a", "b"], "kind": ["OLD", "NEW"], "key": pa.array([b"k", None], pa.binary())})
    with pytest.raises(InvalidArgument, match="needs descriptors for the first write"):
        save(sink(uri, "shop", "protobuf"), rows)
    save(sink(uri, "shop", "protobuf", valueSchemaFile=tmp_path / "shop.desc", valueMessage="shop.Order"), rows)
    save(sink(uri, "shop", "protobuf"), rows)  # The log has the descriptors.
    options = reading(uri, "shop", "protobuf", columns="key,value")
    assert [(row["key"], row["customer"], row["kind"], row["tags"]) for row in read(options)] == [
        (b"k", "a", "OLD", []),
        (None, "b", "NEW", []),
    ] * 2
    with pytest.raises(InvalidArgument, match="column 'nothing' is not in the schema"):
        save(sink(uri, "shop", "protobuf"), pa.table({"nothing": [1]}))


def test_a_registry_keeps_the_schemas(uri: Options, store: Any, served: tuple[FakeRegistry, str]) -> None:
    fake, url = served
    save(sink(uri, "registered", "avro", schemaRegistry=url), ROWS)
    assert fake.subjects == {"registered-value": [1]}
    assert not store.log("registered").schemas().versions
    options = reading(uri, "registered", "avro", schemaRegistry=url)
    requests = len(fake.requests)
    assert read(options) == ROWS.to_pylist()
    assert fake.requests[requests:] == ["GET /subjects/registered-value/versions/latest"] * 2  # of two plans
    fake.refusal = "id changed"
    with pytest.raises(SchemaIncompatible, match="refuses the schema for subject registered-value: id changed"):
        save(sink(uri, "registered", "avro", schemaRegistry=url), pa.table({"id": ["x"]}))
    fake.failures = [503] * 4
    with pytest.raises(SchemaRegistryFailed, match="did not answer GET /subjects/registered-value"):
        source(options).schema()
    assert "no subject other: set schemaRegistry.subject" in refusal({**options, "schemaRegistry.subject": "other"})


def test_a_registry_gets_one_file_of_protobuf(
    uri: Options, served: tuple[FakeRegistry, str], tmp_path: pathlib.Path
) -> None:
    fake, url = served
    (tmp_path / "shop.desc").write_bytes(set_of(ORDER))
    rows = pa.table({"id": [7], "customer": ["a"]})
    written = sink(uri, "shops", "protobuf", schemaRegistry=url)
    save({**written, "valueSchemaFile": tmp_path / "shop.desc", "valueMessage": "shop.Order"}, rows)
    save(written, rows)
    [known] = fake.schemas.values()
    assert known == {"schema": base64.b64encode(ORDER.SerializeToString()).decode(), "schemaType": "PROTOBUF"}
    found = read(reading(uri, "shops", "protobuf", schemaRegistry=url))
    assert [(row["id"], row["customer"]) for row in found] == [(7, "a")] * 2
    apart = file_of({"Order": {"item": (1, "shop.Item")}})
    item = file_of({"Item": {"price": (1, "double")}})
    item.name = "item.proto"
    del item.enum_type[:]
    apart.dependency.append("item.proto")
    (tmp_path / "two.desc").write_bytes(set_of(item) + FileDescriptorSet(file=[apart]).SerializeToString())
    with pytest.raises(
        InvalidArgument, match=r"shop\.proto imports item\.proto, and a schema in a registry is one file"
    ):
        save({**written, "valueSchemaFile": tmp_path / "two.desc"}, pa.table({"item": [{"price": 1.0}]}))


def test_bare_payloads_with_a_schema_in_a_file(uri: Options, store: Any, tmp_path: pathlib.Path) -> None:
    schema = record(id={"type": "long"}, timestamp={"type": "string"}, more={"type": "int", "default": 5})
    (tmp_path / "r.avsc").write_text(schema)
    rows = pa.array([{"id": number, "timestamp": "t", "more": 1} for number in range(4)])
    payloads = Payloads("avro", schema).encode(rows).to_pylist()
    log = store.log("bare")
    log.create(ensemble=1)
    with log.lead() as writer:
        writer.append_many([payloads[0], payloads[1] + b"x", payloads[2], b""])
    options = reading(uri, "bare", "avro", valueSchemaFile=tmp_path / "r.avsc")
    # The source has a column `timestamp` of its own, so the payload's is another one.
    assert [(row["id"], row["value_timestamp"]) for row in read(options)] == [
        (0, "t"),
        (None, None),
        (2, "t"),
        (None, None),
    ]
    assert [row["id"] for row in read(options | {"mode": "DROPMALFORMED"})] == [0, 2]
    ledger = log.manifest().extents[0].ledger_id
    with pytest.raises(InvalidArgument) as caught:
        read(options | {"mode": "FAILFAST"})
    assert f"(ledger {ledger}, entry 1)" in str(caught.value)
    for part in ("log bare: the payload does not match valueFormat=avro", "bytes are left", "choose mode=PERMISSIVE"):
        assert part in str(caught.value)
    corrupt = [*payload_fields(options), pa.field("_corrupt_record", pa.binary())]
    assert [row["_corrupt_record"] for row in batch(options, corrupt)] == [None, payloads[1] + b"x", None, b""]


def test_columns_of_a_sample(uri: Options, store: Any) -> None:
    log = store.log("sampled")
    log.create(ensemble=1)
    with log.lead() as writer:
        writer.append_many([b'{"first": 1}', *[b'{"id": %d}' % number for number in range(50)], b'{"last": "x"}'])
    sampled = reading(uri, "sampled", "json", valueSchemaSample=4)
    assert [field.name for field in payload_fields(sampled)] == ["first", "id", "last"]
    rows = read(sampled)
    assert (rows[0]["first"], rows[25]["id"], rows[-1]["last"]) == (1, 24, "x")
    assert "the sample has no Arrow stream" in refusal(reading(uri, "sampled", "arrow"))


def test_refusals(uri: Options, store: Any, tmp_path: pathlib.Path) -> None:
    store.log("plain").create(ensemble=1, exist_ok=True)
    (tmp_path / "bad.avsc").write_text("{")
    (tmp_path / "other.avsc").write_text(record(id={"type": "string"}, needed={"type": "int"}))
    options = reading(uri, "plain", "avro")
    assert "needs a schema, and log plain has none" in refusal(options)
    assert "no Avro schema" in refusal(options | {"valueSchemaFile": tmp_path / "bad.avsc"})
    assert "No such file" in refusal(options | {"valueSchemaFile": tmp_path / "none.avsc"})
    for value_format in ("avro", "json", "arrow"):
        with pytest.raises(LogNotFound):
            source(reading(uri, "nowhere", value_format)).schema()
    assert "is for valueFormat=avro or protobuf" in refusal(reading(uri, "plain", "json", schemaRegistry="http://x"))
    with_file = options | {"valueSchemaFile": tmp_path / "other.avsc"}
    with pytest.raises(InvalidArgument, match="the payload's schema has no column 'nothing'; it has id, needed"):
        batch(with_file, [pa.field("nothing", pa.int32())])
    with pytest.raises(InvalidArgument, match="column 'id' is STRING in the payload's schema"):
        batch(with_file, [pa.field("id", pa.int32())])
    writes: list[tuple[Options, pa.Table, str]] = [
        (
            sink(uri, "plain", "avro", valueSchemaFile=tmp_path / "other.avsc"),
            pa.table({"id": ["x"]}),
            "column 'needed'",
        ),
        (sink(uri, "plain", "avro", valueSchemaFile=tmp_path / "other.avsc"), pa.table({"id": [1]}), "cast it"),
        (sink(uri, "plain", "json", schemaRegistry="http://x"), ROWS, "has no meaning with valueFormat=json"),
        (sink(uri, "plain", "raw", compatibility="none"), pa.table({"value": ["x"]}), "has no meaning"),
        (sink(uri, "plain", "arrow"), pa.table({"id": [1], "key": ["x"]}), "an entry of Arrow has many rows"),
        (sink(uri, "plain", "avro", schemaRegistry="http://x", compatibility="none"), ROWS, "a registry has its own"),
        (
            {"namespace": "distributedlog://x", "log": "plain", "valueFormat": "json"},
            ROWS,
            "has no meaning with option",
        ),
        (uri | {"valueFormat": "json"}, pa.table({"id": [1], "log": ["x"]}), "writes one log"),
    ]
    for written, table, reason in writes:
        with pytest.raises(InvalidArgument, match=reason):
            save(written, table)
