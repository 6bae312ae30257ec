"""`BOOKIE_STATUS`: bytes, what is no status, and which of several counts."""

from __future__ import annotations

import json
import pathlib

import pytest

from bookies.errors import CorruptRecord
from bookies.storage.disks.status_format import StatusRecord, newest, parse

CAPTURE = pathlib.Path(__file__).parents[3] / "golden" / "metadata" / "readonly-registration.json"


def test_what_apache_writes() -> None:
    files = json.loads(CAPTURE.read_bytes())["BOOKIE_STATUS"]
    before = files["ledgers/current/BOOKIE_STATUS"].encode()
    after = files["after"]["ledgers/current/BOOKIE_STATUS"].encode()
    assert parse(before) == StatusRecord(True, 1795262526105, True)
    assert parse(after) == StatusRecord(False, 1795262528557, False)
    assert parse(before).pack() == before
    assert parse(after).pack() == after


def test_three_fields_are_of_an_operator() -> None:
    assert parse(b"1,READ_ONLY,5\n") == StatusRecord(True, 5, True)
    assert parse(b"1,READ_ONLY,5").is_held
    assert not parse(b"1,READ_ONLY,5,false").is_held
    assert not parse(b"1,READ_WRITE,5,true").is_held


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\n",
        b"2,READ_ONLY,5,true\n",
        b"1,READONLY,5,true\n",
        b"1,READ_ONLY,-5,true\n",
        b"1,READ_ONLY,5,yes\n",
        b"1,READ_ONLY,5,true,x\n",
        b"1,READ_ONLY,5,true\n\0",
        b"1,READ_ONLY," + b"9" * 19 + b"\n",
        bytes(30),
    ],
)
def test_what_is_no_status(data: bytes) -> None:
    with pytest.raises(CorruptRecord, match="BOOKIE_STATUS at byte 0: not a status"):
        parse(data)


def test_the_newest_counts() -> None:
    read_write, automatic, manual = (
        StatusRecord(False, 7, False),
        StatusRecord(True, 6, False),
        StatusRecord(True, 5, True),
    )
    assert newest([manual, read_write, automatic]) == read_write
    assert newest([automatic, manual]) == automatic
    assert newest([read_write, StatusRecord(True, 7, True)]) == StatusRecord(True, 7, True)
    assert newest([]) is None
