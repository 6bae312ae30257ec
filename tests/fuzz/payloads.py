"""Fuzz targets: payloads of Avro and Protobuf, the header with the schema id, and schemas as text."""

from __future__ import annotations

import base64
import json
from typing import Any, cast

import pyarrow as pa
from msgspec.structs import replace
from tests.fakes.protobuf_files import ORDER, set_of, text_of
from tests.fuzz.target import Target, accepted, check, equal

from bookies.errors import InvalidArgument, MetadataCorrupt
from bookies.formats import Payloads, protobuf
from bookies.formats.avro_schema import arrow_fields, parse_avro, schema_of_columns, unreadable
from bookies.formats.columns import ddl_of, parse_ddl
from bookies.formats.framing import framed
from bookies.model import DigestType
from bookies.protocol.log import Manifest
from bookies.protocol.payloads.schemas import FIELD, schemas_of

COLUMNS = parse_ddl("a BIGINT, b STRING, c ARRAY<DOUBLE>, d STRUCT<e: BOOLEAN>, f MAP<STRING, INT>, g TIMESTAMP")
SCHEMA = schema_of_columns(COLUMNS, "r")
ROW = [{"a": 1, "b": "x", "c": [0.5], "d": {"e": True}, "f": [("k", 1)], "g": 7}]
BODIES = Payloads("avro", SCHEMA).encode(pa.array(ROW, pa.struct(list(COLUMNS))))
LIST = Manifest("t", 1, 1, 1, 1, DigestType.CRC32C)


def payloads(data: bytes) -> None:
    """A batch of a damaged payload between good ones: the good ones are as they were, whatever the bytes are."""
    for decoder, body in ((Payloads("avro", SCHEMA), BODIES[0].as_py()), (Payloads("protobuf", text_of(ORDER)), b"")):
        for is_framed in (False, True):
            one = replace(decoder, is_framed=is_framed, writers={1: SCHEMA})
            good = framed(1, pa.array([body]), b"\0" * (decoder.format == "protobuf"))[0].as_py() if is_framed else body
            rows, malformed = one.decode([good, data, good])
            equal(len(rows), 3, "another number of rows")
            check(set(malformed) <= {1}, "a good payload is malformed", malformed)
            check(rows[0] == rows[2] == one.decode([good]).rows[0], "a good payload decodes differently", rows)
            equal(bool(malformed), not rows[1].is_valid, "a row that is malformed or not null")


def schemas(data: bytes) -> None:
    """Texts of schemas: of Avro, columns, descriptors; and those in the record of a log."""
    text = data.decode("utf-8", "replace")
    parsed = accepted(InvalidArgument, parse_avro, text)
    if parsed is not None:
        equal(unreadable(parsed, parsed), "", "a schema cannot read what it wrote")
        ddl_of(pa.schema(arrow_fields(parsed)))
    columns = accepted(InvalidArgument, parse_ddl, text)
    if columns is not None:
        equal(parse_ddl(ddl_of(columns)), columns, "parse(ddl(x)) is not x")
        accepted(InvalidArgument, schema_of_columns, columns, "r")
    accepted(InvalidArgument, protobuf.Message, base64.b64encode(data).decode(), "")
    try:
        stored = json.loads(text)
    except (ValueError, RecursionError):
        return
    accepted(MetadataCorrupt, schemas_of, replace(LIST, extra={FIELD: cast(Any, stored)}))


def _payloads() -> list[bytes]:
    return [
        BODIES[0].as_py(),
        framed(1, BODIES)[0].as_py(),
        b"\x08\x01\x12\x01x\x1a\x01y",
        b"\0\0\0\0\1\x02\x02\x09",
        b"",
    ]


def _schemas() -> list[bytes]:
    kept = {"format": "avro", "compatibility": "full", "versions": [{"id": 1, "schema": "x", "message": ""}]}
    return [SCHEMA.encode(), ddl_of(COLUMNS).encode(), set_of(ORDER), json.dumps(kept).encode(), b"[" * 3000, b'"long"']


TARGETS = [Target("payloads", payloads, _payloads, 512), Target("schemas", schemas, _schemas, 4096)]
