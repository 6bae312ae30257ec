"""Segment data: the specification's examples, every version, and damage. Source: distributedlog 2.4, 2.5, 2.10."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from bookies.distributedlog.formats.dlsn import Dlsn
from bookies.distributedlog.formats.segment import (
    PARTLY_TRUNCATED,
    TRUNCATED,
    Segment,
    is_segment_name,
    parse_segment,
    segment_name,
)
from bookies.errors import MetadataCorrupt, NotSupported

DONE = Segment("logrecs_000000000000000007", 5, 1234, 7, 100, 101, 1700000000000, 2, 1, 0, 0, 0, start_sequence_id=5000)
EXAMPLES = {
    b"5;1234;100;7;0;0;-1": Segment("inprogress_000000000000000007", 5, 1234, 7, 100),
    b"8589934597;1234;100;101;1700000000000;7;1;0;0;0;5000": DONE,
    b"8589934853;1234;100;101;1700000000000;7;1;0;0;1;5000": replace(DONE, status=PARTLY_TRUNCATED, min_slot=1),
    b"8589935109;1234;100;101;1700000000000;7;1;0;0;1;5000": replace(DONE, status=TRUNCATED, min_slot=1),
    b"9395240965;1234;100;101;1700000000000;7;1;0;0;0;5000": replace(DONE, region=3),
    b"1;9;100": Segment("inprogress_64", 1, 9, 0, 100),
    b"8589934593;9;100;101;17": Segment("logrecs_1", 1, 9, 0, 100, 101, 17, 2),
    b"2;9;100;4": Segment("inprogress_64", 2, 9, 4, 100),
    b"8589934594;9;100;101;17;4;1;0": Segment("logrecs_1", 2, 9, 4, 100, 101, 17, 2, 1, 0),
    b"3;9;100;4;5;6": Segment("inprogress_64", 3, 9, 4, 100, min_entry=5, min_slot=6),
    b"8589934595;9;100;101;17;4;1;0;5;6": Segment("logrecs_1", 3, 9, 4, 100, 101, 17, 2, 1, 0, 5, 6),
    b"4;9;100;4;5;6": Segment("inprogress_64", 4, 9, 4, 100, min_entry=5, min_slot=6),
    b"8589934596;9;100;101;17;4;1;0;5;6": Segment("logrecs_1", 4, 9, 4, 100, 101, 17, 2, 1, 0, 5, 6),
}


@pytest.mark.parametrize("data", EXAMPLES, ids=lambda data: data.decode())
def test_data_of_every_version_is_read_and_written(data: bytes) -> None:
    segment = EXAMPLES[data]
    assert parse_segment(segment.name, data) == segment
    assert segment.pack() == data
    assert segment.is_completed == segment.name.startswith("logrecs")
    assert segment.is_enveloped == (segment.version >= 4)


def test_a_segment_knows_its_ends() -> None:
    assert (DONE.first_dlsn, DONE.last_dlsn, DONE.min_dlsn) == (Dlsn(7, 0, 0), Dlsn(7, 1, 0), Dlsn(7, 0, 0))
    assert DONE.exposed_start_sequence_id == 5000
    assert replace(DONE, start_sequence_id=-1).exposed_start_sequence_id == -9223372006790004736


def test_names() -> None:
    assert segment_name(7, is_completed=False) == "inprogress_000000000000000007"
    assert segment_name(7, is_completed=True) == "logrecs_000000000000000007"
    assert is_segment_name("logrecs_1_2")
    assert not is_segment_name("lock")


@pytest.mark.parametrize("data", [b"", b"x", b"5;", b"5;1;2", b"5;1;2;3;4;5;6;7", b"1;2;3;4", b"5;1 ;2;3;4;5;6"])
def test_damage_is_refused(data: bytes) -> None:
    with pytest.raises(MetadataCorrupt, match="segment logrecs_1"):
        parse_segment("logrecs_1", data)


@pytest.mark.parametrize("data", [b"6;1;2;3;4;5;6", b"0;1;2"])
def test_an_unknown_version_is_refused(data: bytes) -> None:
    with pytest.raises(NotSupported, match="versions 1 to 5 are known"):
        parse_segment("logrecs_1", data)
