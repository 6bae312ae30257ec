"""Rows as entries: headers that the log itself gives."""

from __future__ import annotations

import pyarrow as pa
import pytest

from bookies.encoding.envelope import Header, parse_record
from bookies.errors import InvalidArgument
from bookies.protocol.log.log_model import ENVELOPE
from bookies.spark.base.envelope import COLUMNS
from bookies.spark.write.sink import packed, records_of

OWN = ("bk-sequence", b"w:7")
A, B = ("a", b"1"), ("b", None)


def columns_of(rows: list[list[Header] | None]) -> dict[str, pa.Array]:
    pairs = [None if row is None else [{"key": key, "value": value} for key, value in row] for row in rows]
    headers = pa.array([[], *pairs], COLUMNS["headers"])[1:]  # A slice must not change the outcome.
    return {"value": pa.array([b"%d" % index for index in range(len(rows))], pa.binary()), "headers": headers}


def headers_of(rows: list[list[Header] | None]) -> list[list[Header] | None]:
    """Return the headers of the records, which both ways of writing must give."""
    columns = columns_of(rows)
    data, offsets = packed(columns, ENVELOPE)
    found = [parse_record(data[offsets[index] : offsets[index + 1]]).headers for index in range(len(rows))]
    assert [record.headers for record in records_of(columns)] == found
    return [None if each is None else list(each) for each in found]


def test_a_producer_s_number_is_not_copied() -> None:
    rows: list[list[Header] | None] = [[A, OWN, B], None, [OWN], [], [OWN, OWN, B], [A]]
    assert headers_of(rows) == [[A, B], None, None, [], [B], [A]]
    assert headers_of([None, [A, B]]) == [None, [A, B]]


def test_a_reserved_name_is_refused() -> None:
    for write in (lambda columns: packed(columns, ENVELOPE), records_of):
        with pytest.raises(InvalidArgument, match="header bk-mine: names that begin with bk- are reserved"):
            write(columns_of([[A], [OWN, ("bk-mine", b"1")]]))
