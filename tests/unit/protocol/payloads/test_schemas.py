"""Schemas in a log's record: ids, rules, what is refused, and records that are damaged."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from bookies.errors import InvalidArgument, MetadataCorrupt, SchemaIncompatible
from bookies.model import DigestType
from bookies.protocol.log import Manifest
from bookies.protocol.log.log_model import pack_manifest, parse_manifest
from bookies.protocol.payloads.schemas import (
    FIELD,
    SIZE_MAX,
    LogSchema,
    LogSchemas,
    schemas_of,
    with_schema,
)

LIST = Manifest("t", 1, 3, 3, 2, DigestType.CRC32C, extra={"other": 1})


def refusing(known: LogSchemas) -> None:
    raise SchemaIncompatible(f"{known.compatibility} {len(known.versions)}")


def accepting(known: LogSchemas) -> None:
    assert known.versions


def added(manifest: Manifest, text: str, rule: str | None = None, message: str = "", check: Any = accepting) -> Any:
    return with_schema(manifest, LogSchema(0, text, message), "avro", rule, check)


def test_versions_have_ids_in_order_and_survive_the_record() -> None:
    assert schemas_of(LIST) == LogSchemas()
    assert schemas_of(LIST).latest is None
    one = added(LIST, "a", check=refusing)  # The first one is not checked.
    two = added(added(one, "b", "full"), "c", message="m.M")
    known = schemas_of(parse_manifest("log", pack_manifest(two)))
    assert known == LogSchemas("avro", "full", (LogSchema(1, "a"), LogSchema(2, "b"), LogSchema(3, "c", "m.M")))
    assert known.latest == LogSchema(3, "c", "m.M")
    assert two.extra["other"] == 1


def test_a_schema_that_the_log_has_changes_nothing() -> None:
    one = added(LIST, "a")
    assert added(one, "a", check=refusing) is None
    assert added(one, "a", "backward", check=refusing) is None
    assert schemas_of(added(one, "a", "none", check=refusing)) == LogSchemas("avro", "none", (LogSchema(1, "a"),))
    two = added(one, "b")
    assert added(two, "a", check=refusing) is None  # A schema that the log has keeps its id.
    assert schemas_of(two).find(LogSchema(9, "a")) == LogSchema(1, "a")
    assert schemas_of(two).find(LogSchema(9, "a", "m.M")) is None


def test_the_check_sees_the_new_rule() -> None:
    with pytest.raises(SchemaIncompatible, match="forward 1"):
        added(added(LIST, "a"), "b", "forward", check=refusing)


def test_refusals() -> None:
    with pytest.raises(InvalidArgument, match="payloads of format avro, not json"):
        with_schema(added(LIST, "a"), LogSchema(0, "b"), "json", None, accepting)
    with pytest.raises(InvalidArgument, match="'xml': expected one of avro"):
        with_schema(LIST, LogSchema(0, "b"), "xml", None, accepting)
    with pytest.raises(InvalidArgument, match="'most': expected one of backward"):
        added(LIST, "a", "most")
    with pytest.raises(InvalidArgument, match="schema registry"):
        added(added(LIST, "a" * SIZE_MAX), "b")


@pytest.mark.parametrize(
    "stored",
    [
        [],
        {"format": "avro"},
        {"format": "xml", "compatibility": "none", "versions": []},
        {"format": "avro", "compatibility": "most", "versions": []},
        {"format": "avro", "compatibility": "none", "versions": [{"id": "1", "schema": "a"}]},
        {"format": "avro", "compatibility": "none", "versions": [{"id": 1, "schema": "a", "message": 7}]},
        {"format": "avro", "compatibility": "none", "versions": ["a"]},
    ],
)
def test_damaged_records(stored: Any) -> None:
    with pytest.raises(MetadataCorrupt, match="schemas of a log"):
        schemas_of(replace(LIST, extra={FIELD: stored}))
