"""Payloads of Protobuf against Google's own classes, damaged ones, and which descriptor reads which."""

from __future__ import annotations

import base64
import datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from tests.fakes.protobuf_files import ORDER, class_of, file_of, text_of

from bookies.errors import InvalidArgument
from bookies.formats import protobuf
from bookies.formats.columns import ddl_of


def test_rows_there_and_back() -> None:
    order = class_of(ORDER, "shop.Order")(id=5, customer="é", tags=["a", "b"], big=2**64 - 1, kind=1)
    order.at.FromJsonString("2020-01-02T03:04:05.006Z")
    order.items.add(price=2.5)
    message = protobuf.message(text_of(ORDER), "")
    assert ddl_of(pa.schema(message.columns)) == (
        "id BIGINT, customer STRING, tags ARRAY<STRING>, at TIMESTAMP, big DECIMAL(20,0), kind STRING, "
        "items ARRAY<STRUCT<price: DOUBLE>>"
    )
    bodies = pa.array([order.SerializeToString(), b""], pa.binary())
    rows, bad = message.decode(bodies)
    assert not bad
    assert rows.to_pylist() == [
        {
            "id": 5,
            "customer": "é",
            "tags": ["a", "b"],
            "at": datetime.datetime(2020, 1, 2, 3, 4, 5, 6000, tzinfo=datetime.UTC),
            "big": Decimal(2**64 - 1),
            "kind": "OLD",
            "items": [{"price": 2.5}],
        },
        {"id": 0, "customer": "", "tags": [], "at": None, "big": Decimal(0), "kind": "NEW", "items": []},
    ]
    assert message.encode(rows) == bodies
    some = pa.StructArray.from_arrays([rows.field("customer")], names=["customer"])
    assert message.encode(some).to_pylist() == [b"\x12\x02\xc3\xa9", b""]


def test_damaged_payloads() -> None:
    bodies = [b"\x08\x01", b"\xff\xff", b"\x08\x02", b"\x12\x7fabc", b"\x12\x01\xff", b"\x08\x03"]
    rows, bad = protobuf.message(text_of(ORDER), "shop.Order").decode(pa.array(bodies, pa.binary()))
    assert sorted(bad) == [1, 3, 4]
    assert [row and row["id"] for row in rows.to_pylist()] == [1, None, 2, None, None, 3]


def test_the_place_of_a_message_and_a_file_without_its_imports() -> None:
    alone = base64.b64encode(ORDER.SerializeToString()).decode()  # As a registry has it.
    assert protobuf.message(alone, "shop.Order").place == b"\0"
    assert protobuf.message(alone, "shop.Item").place == b"\x02\x02"
    assert [column.name for column in protobuf.message(alone, "shop.Item").columns] == ["price"]


def test_schemas_that_are_none() -> None:
    recursive = file_of({"Node": {"next": (1, "shop.Node")}})
    foreign = file_of({"Order": {"id": (1, "int64")}})
    foreign.dependency[0] = "other.proto"
    for text, name, reason in (
        ("%", "", "protoc --include_imports"),
        ("AAAA", "", "no descriptors"),
        (text_of(ORDER), "shop.Nothing", "no message shop.Nothing"),
        (text_of(recursive), "", "shop.Node contains itself"),
        (base64.b64encode(foreign.SerializeToString()).decode(), "", "imports other.proto"),
    ):
        with pytest.raises(InvalidArgument, match=reason):
            protobuf.message(text, name)


def test_a_value_that_its_field_cannot_hold() -> None:
    rows = pa.array([{"id": "x"}], pa.struct([("id", pa.string())]))
    with pytest.raises(InvalidArgument, match=r"a row does not match message shop\.Order"):
        protobuf.message(text_of(ORDER), "").encode(rows)


@pytest.mark.parametrize(
    ("written", "read", "reason"),
    [
        ({"id": (1, "int64")}, {"id": (1, "int32"), "new": (2, "string")}, ""),
        ({"id": (1, "int64"), "old": (2, "string")}, {"id": (1, "bool")}, ""),
        ({"id": (1, "string")}, {"name": (1, "bytes")}, ""),
        ({"id": (1, "int64")}, {"id": (1, "string")}, "id (number 1) has another type"),
        ({"id": (1, "int64")}, {"id": (1, "sint64")}, "id (number 1) has another type"),
        ({"id": (1, "int64")}, {"id": (1, "int64[]")}, "id (number 1) has another type"),
        ({"id": (1, "int64")}, {"id": (2, "int64")}, "id has number 1 where it was written, 2 where it is read"),
    ],
)
def test_which_message_reads_which(written: Any, read: Any, reason: str) -> None:
    def descriptor(fields: Any) -> Any:
        return protobuf.message(text_of(file_of({"Outer": {"inner": (1, "shop.In")}, "In": fields})), "").descriptor

    found = protobuf.unreadable(descriptor(written), descriptor(read))
    assert found.startswith(f"inner.{reason}") if reason else not found
