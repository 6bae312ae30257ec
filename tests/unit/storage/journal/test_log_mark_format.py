"""The mark's bytes, names, and which of several copies counts."""

from __future__ import annotations

import pytest

from bookies.storage.journal import LogMark
from bookies.storage.journal.log_mark_format import distinct, file_name, pack, parse, parse_file_name

EXAMPLE = bytes.fromhex("0000018f1548f7010000000000000400")


def test_the_worked_example() -> None:
    mark = LogMark(0x18F1548F701, 1024)
    assert pack(mark) == EXAMPLE
    assert parse(EXAMPLE) == mark


def test_names() -> None:
    assert file_name(0, 1) == "lastMark"
    assert [file_name(index, 11) for index in (0, 10)] == ["lastMark.0", "lastMark.10"]
    assert parse_file_name("lastMark") == 0
    assert parse_file_name("lastMark.10") == 10
    for name in ("lastMark.", "lastMark.01", "lastMark.x", "lastmark", ".lastMark.tmp"):
        assert parse_file_name(name) is None


@pytest.mark.parametrize("data", [b"", EXAMPLE[:8], EXAMPLE[:15], EXAMPLE + b"\0", b"\xff" * 16])
def test_torn_copies_do_not_count(data: bytes) -> None:
    assert parse(data) is None
    assert distinct([data, EXAMPLE, data]) == [LogMark(0x18F1548F701, 1024)]


def test_copies_ascend() -> None:
    marks = [LogMark(2, 0), LogMark(1, 999), LogMark(2, 7), LogMark(2, 0)]
    assert distinct(map(pack, marks)) == [LogMark(1, 999), LogMark(2, 0), LogMark(2, 7)]
    assert distinct([]) == []
