"""Schemas that the sink keeps with a log, beside other writers."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from pyspark.sql.pandas.types import from_arrow_schema

from bookies.errors import InvalidArgument
from bookies.formats.columns import parse_ddl
from bookies.model import DigestType
from bookies.protocol.log import Manifest
from bookies.protocol.payloads.schemas import Check, LogSchema, LogSchemas, schemas_of, with_schema
from bookies.spark.write.payload_writing import with_schema_kept
from bookies.spark.write.write_settings import settings_of


class FakeLog:
    """The record of a log."""

    def __init__(self) -> None:
        self.manifest = Manifest("t", 1, 3, 3, 2, DigestType.CRC32C)

    async def schemas(self) -> LogSchemas:
        return schemas_of(self.manifest)

    async def add_schema(
        self, schema_format: str, text: str, check: Check, *, message: str = "", compatibility: str | None = None
    ) -> LogSchema:
        new = LogSchema(0, text, message)
        self.manifest = with_schema(self.manifest, new, schema_format, compatibility, check) or self.manifest
        kept = schemas_of(self.manifest).find(new)
        assert kept is not None
        return kept


def written(log: FakeLog, ddl: str, with_log: Any = None) -> None:
    """Plan a write of these columns."""

    def directly(act: Any) -> Any:
        return asyncio.run(act(log))

    options = {"log": "orders", "valueFormat": "json", "bookkeeper.metadataServiceUri": "file:/nowhere"}
    with_schema_kept(settings_of(options, from_arrow_schema(parse_ddl(ddl)), is_stream=False), with_log or directly)


def test_two_writers_that_add_columns_at_once_lose_none() -> None:
    log = FakeLog()
    calls = 0

    def overtaken(act: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 2:  # after the first one asked for the newest schema
            written(log, "id BIGINT, theirs STRING")
        return asyncio.run(act(log))

    written(log, "id BIGINT")
    written(log, "id BIGINT, ours STRING", overtaken)
    latest = schemas_of(log.manifest).latest
    assert latest is not None
    assert sorted(parse_ddl(latest.text).names) == ["id", "ours", "theirs"]


def test_columns_that_nobody_could_write_or_read_are_not_kept() -> None:
    log = FakeLog()
    with pytest.raises(InvalidArgument, match="a map with keys of INT is no JSON object: use STRING"):
        written(log, "m MAP<INT, STRING>")
    assert not schemas_of(log.manifest).versions
    written(log, "id BIGINT")
    with pytest.raises(InvalidArgument, match="column 'ID' and 'id' of the schema differ in case only"):
        written(log, "ID BIGINT")
    assert len(schemas_of(log.manifest).versions) == 1
