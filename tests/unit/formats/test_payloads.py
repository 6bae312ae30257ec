"""Payloads with ids of several schemas, nulls and damage; encoding in every format; rules of compatibility."""

from __future__ import annotations

import json
from collections.abc import Callable

import pyarrow as pa
import pytest
from tests.fakes.protobuf_files import ORDER, file_of, text_of
from tests.fakes.registry import fake_registry

from bookies.errors import NotSupported, SchemaIncompatible, SchemaNotFound
from bookies.formats import Payloads, checked_by, opened_registry
from bookies.formats.framing import header_of
from bookies.protocol.payloads.schemas import LogSchema, LogSchemas


def record(**fields: object) -> str:
    rows = [{"name": name, "type": ["null", kind], "default": None} for name, kind in fields.items()]
    return json.dumps({"type": "record", "name": "R", "fields": rows})


ONE, TWO = record(a="int"), record(a="long", b="string")
ROWS = pa.array([{"a": 1}, {"a": None}], pa.struct([("a", pa.int32())]))


def test_bare_payloads_and_nulls() -> None:
    orders = Payloads("avro", ONE)
    first, second = orders.encode(ROWS).to_pylist()
    rows, bad = orders.decode([first, None, b"\x09", second])
    assert rows.to_pylist() == [{"a": 1}, None, None, {"a": None}]
    assert list(bad) == [2]
    assert orders.decode([]).rows.to_pylist() == []
    assert orders.decode([None]).rows.to_pylist() == [None]


def test_tables_and_batches_are_rows_too() -> None:
    orders = Payloads("avro", ONE)
    batch = pa.RecordBatch.from_struct_array(ROWS)
    assert orders.encode(batch) == orders.encode(pa.Table.from_batches([batch])) == orders.encode(ROWS)
    assert len(orders.encode(pa.Table.from_batches([], batch.schema))) == 0


def finder(known: dict[int, str]) -> Callable[[int], str]:
    def find(schema_id: int) -> str:
        if schema_id not in known:
            raise SchemaNotFound(f"schema {schema_id} is unknown")
        return known[schema_id]

    return find


def test_each_payload_has_the_schema_that_its_id_names() -> None:
    reader = Payloads("avro", TWO, is_framed=True, writers={1: ONE})
    old = Payloads("avro", ONE, is_framed=True, id=1).encode(ROWS).to_pylist()
    new = pa.array([{"a": 1 << 40, "b": "x"}], pa.struct([("a", pa.int64()), ("b", pa.string())]))
    [newer] = Payloads("avro", TWO, is_framed=True, id=2).encode(new).to_pylist()
    values = [newer, old[0], None, header_of(9) + b"x", b"bare", old[0][:-1], newer, old[1]]
    rows, bad = reader.decode(values, finder({2: TWO}))
    a = [row and (row["a"], row["b"]) for row in rows.to_pylist()]
    assert a == [(1 << 40, "x"), (1, None), None, None, None, None, (1 << 40, "x"), (None, None)]
    assert sorted(bad) == [3, 4, 5]
    assert bad[3] == "schema 9 is unknown"
    assert "valueFraming=bare" in bad[4]
    assert list(reader.decode([newer]).malformed.values()) == ["schema 2 is unknown"]


def test_a_registry_has_the_schemas() -> None:
    with fake_registry() as (fake, url):
        number = fake.add("s", ONE)
        reader = Payloads("avro", TWO, is_framed=True, registry=opened_registry(url))
        values = Payloads("avro", ONE, is_framed=True, id=number).encode(ROWS).to_pylist() * 50
        rows, bad = reader.decode([*values, header_of(77) + b"x"])
        assert (len(rows), list(bad)) == (101, [100])
        reader.decode(values)
        assert fake.requests == [f"GET /schemas/ids/{number}", "GET /schemas/ids/77"]


def test_a_schema_that_the_reader_does_not_read() -> None:
    reader = Payloads("avro", record(a="int"), is_framed=True, writers={1: record(a="string")})
    with pytest.raises(SchemaIncompatible, match="a is string where it was written, and int"):
        reader.decode([header_of(1) + b"\0"])


def test_protobuf_with_ids() -> None:
    orders = Payloads("protobuf", text_of(ORDER), "shop.Item", is_framed=True, id=3)
    values = orders.encode(pa.array([{"price": 1.5}], pa.struct(orders.fields))).to_pylist()
    assert values[0][:7] == b"\0\0\0\0\3\2\2"
    rows, bad = orders.decode([values[0], header_of(3) + b"\x80", header_of(3)])
    assert rows.to_pylist() == [{"price": 1.5}, None, None]
    assert sorted(bad) == [1, 2]


def test_json_and_arrow_are_only_written_here() -> None:
    lines = Payloads("json", "a INT")
    assert lines.encode(ROWS).to_pylist() == [b'{"a":1}', b'{"a":null}']
    assert [field.name for field in lines.fields] == ["a"]
    with pytest.raises(NotSupported, match=r"pyarrow\.json"):
        lines.decode([b"{}"])
    many = pa.array([{"a": number} for number in range(5000)], ROWS.type)
    streams = Payloads("arrow", "a INT").encode(many).to_pylist()
    tables = [pa.ipc.open_stream(stream).read_all() for stream in streams]
    assert [len(table) for table in tables] == [4096, 904]
    assert pa.concat_tables(tables)["a"].to_pylist() == list(range(5000))


FILES = [text_of(file_of({"R": fields})) for fields in ({"a": (1, "int64")}, {"a": (1, "string")})]


@pytest.mark.parametrize(
    ("kind", "rule", "old", "new", "reason"),
    [
        ("avro", "backward", ONE, TWO, ""),
        ("avro", "backward", TWO, ONE, "the new schema cannot read rows of version 1: a is long"),
        ("avro", "forward", ONE, TWO, "version 1 cannot read rows of the new schema: a is long"),
        ("avro", "full", ONE, TWO, "version 1 cannot read"),
        ("avro", "none", TWO, ONE, ""),
        ("json", "backward", "a INT", "b INT, a BIGINT", ""),
        ("json", "backward", "a BIGINT", "a INT", "a is BIGINT where it was written, and INT where it is read"),
        ("arrow", "forward", "a INT", "a BIGINT", "a is BIGINT where it was written"),
        ("arrow", "full", "a INT, b INT", "a INT, c STRUCT<x: INT>", ""),
        ("protobuf", "backward", FILES[0], FILES[0], ""),
        ("protobuf", "backward", FILES[0], FILES[1], r"a \(number 1\) has another type"),
    ],
)
def test_compatibility(kind: str, rule: str, old: str, new: str, reason: str) -> None:
    check = checked_by(kind, new)
    known = LogSchemas(kind, rule, (LogSchema(1, old),))
    if not reason:
        check(known)
        return
    with pytest.raises(SchemaIncompatible, match=reason):
        check(known)


def test_every_version_counts() -> None:
    known = LogSchemas("json", "backward", (LogSchema(1, "a STRING"), LogSchema(2, "b INT")))
    with pytest.raises(SchemaIncompatible, match="version 1: a is STRING"):
        checked_by("json", "a INT, b INT")(known)
