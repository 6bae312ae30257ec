"""Lines that are entries: what is one, and what is none."""

from __future__ import annotations

import csv
import io

import pyarrow as pa
import pytest

from bookies.errors import InvalidArgument
from bookies.spark.jobs.shared.lines import JsonLines, check_object, csv_lines

OBJECTS = [b"{}", b' {"a": [1, null, -2.5e3, true]} ', '{"ä": "\\ud83d"}'.encode(), b'{"a":%s}' % (b"9" * 5000)]
OTHERS = [
    b'{"a":1} garbage', b"{'a':1}", b'{"a":1}{"b":2}', b"5", b"null", b'"text"', b"[{}]", b'{"a":NaN}', b"{", b"",
    b'{"a":"\xe4"}', b'{"a":-Infinity}', b'{"a":' * 100_000, b'{"a":1,}', b"\xff\xfe{\0}\0",
]  # fmt: skip


def test_an_object_is_one_and_nothing_else() -> None:
    for line in OBJECTS:
        check_object(line)
    for line in OTHERS:
        with pytest.raises(ValueError, match=r"."):
            check_object(line)


def test_a_line_that_is_no_object_is_named() -> None:
    good = pa.RecordBatch.from_pydict({"value": [line.decode() for line in OBJECTS]})
    assert list(JsonLines("a.jsonl")([good])) == [good]
    bad = pa.RecordBatch.from_pydict({"value": ["{}", '{"a":1} garbage']})
    with pytest.raises(InvalidArgument, match=r'file a\.jsonl: a line is not a JSON object: {"a":1} garbage'):
        list(JsonLines("a.jsonl")([bad]))


def test_an_empty_text_is_told_from_none_and_a_line_may_end_in_one() -> None:
    rows = [(0, 1, ""), (0, 2, "a\rb"), (0, 3, '"\n",')]
    data = csv_lines(rows)
    assert data == b'0,1,""\n0,2,"a\rb"\n0,3,"""\n"","\n'
    assert list(csv.reader(io.StringIO(data.decode(), ""))) == [[str(each) for each in row] for row in rows]
