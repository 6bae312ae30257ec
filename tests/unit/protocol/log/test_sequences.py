"""Numbered entries: which of them a log holds, where, and the stored snapshot."""

from __future__ import annotations

import pytest

from bookies.errors import InvalidArgument, MetadataCorrupt, NotSupported, SequenceGap
from bookies.protocol.log import Position
from bookies.protocol.log.records import LogRecord
from bookies.protocol.log.sequences import (
    HEADER,
    NUMBER_MAX,
    RUNS_MAX,
    WRITER_AGE_MS,
    WRITERS_MAX,
    Run,
    Sequences,
    check_unnumbered,
    check_writer,
    pack_number,
    parse_number,
    parse_sequences,
)


def run(first: int, count: int, entry: int, ledger: int = 7) -> Run:
    return Run(first, count, Position(ledger, entry))


def test_numbers_are_contiguous_from_the_first_one_on() -> None:
    state = Sequences()
    assert state.stored("w", 5, 3) == 0  # a writer may begin anywhere
    state.add("w", run(5, 3, 10), 1)
    assert [state.stored("w", first, count) for first, count in ((8, 2), (7, 2), (5, 3))] == [0, 1, 3]
    with pytest.raises(SequenceGap, match="last number of writer w is 7, so 9 leaves a gap: append 8") as caught:
        state.stored("w", 9, 1)
    assert caught.value.expected == 8
    assert state.stored("other", 9, 1) == 0


def test_a_number_before_the_first_one_is_not_taken_for_stored() -> None:
    state = Sequences()
    state.add("w", run(5, 3, 10), 1)
    state.add("scanned", run(5, 3, 13), 1, is_complete=False)  # earlier ones may have been truncated
    found = parse_sequences("orders", "token", state.pack("token", Position(7, 13)))
    assert found is not None
    for each in (state, found[0]):
        with pytest.raises(InvalidArgument, match="first number of writer w is 5, so 4 cannot be appended"):
            each.stored("w", 4, 2)
        assert each.stored("scanned", 4, 2) == 2


def test_positions_of_entries_across_runs_and_ledgers() -> None:
    state = Sequences()
    state.add("w", run(0, 2, 10), 1)
    state.add("w", run(2, 1, 12), 1)  # joins the run
    state.add("w", run(3, 1, 14), 1)
    state.add("w", run(3, 3, 14), 1)  # the first of these is known
    state.add("w", run(4, 1, 99), 1)  # all are
    state.add("w", run(6, 1, 0, ledger=8), 1)
    at = [state.position_of("w", number) for number in range(8)]
    assert at == [(7, 10), (7, 11), (7, 12), (7, 14), (7, 15), (7, 16), (8, 0), None]
    assert state.position_of("x", 0) is None
    state.add("v", run(0, 1, 20), 1)
    assert state.ends() == [(8, 1), (7, 21)]


def test_a_record_with_a_number_of_another_log_is_refused() -> None:
    position = Position(7, 0)
    plain = LogRecord(position, b"v", headers=[("content-type", b"text")])
    numbered = LogRecord(position, b"v", headers=[(HEADER, pack_number("shop", 4))])
    check_unnumbered("orders", [plain, LogRecord(position, b"v")])
    with pytest.raises(InvalidArgument, match="number 4 of producer shop would count in log orders"):
        check_unnumbered("orders", [plain, numbered])


def test_old_positions_are_forgotten_and_their_numbers_are_not() -> None:
    state = Sequences()
    for number in range(RUNS_MAX + 2):
        state.add("w", run(number, 1, 2 * number), 1)
    assert [state.position_of("w", number) for number in (0, 1, 2)] == [None, None, (7, 4)]
    assert state.stored("w", 0, 1) == 1


def test_a_snapshot_is_read_back() -> None:
    state = Sequences()
    state.add("w", run(5, 3, 10), 77)
    data = state.pack("token", Position(7, 13))
    found = parse_sequences("orders", "token", data)
    assert found is not None
    again, position = found
    assert position == Position(7, 13)
    assert again.pack("token", position) == data
    assert again.position_of("w", 7) == (7, 12)
    assert parse_sequences("orders", "another", data) is None
    with pytest.raises(NotSupported, match="numbers of log orders have format 2"):
        parse_sequences("orders", "token", data.replace(b'"format":1', b'"format":2'))
    for damaged in (b"", b"[]", b"{}", data.replace(b"[7,13]", b"[7]"), data.replace(b"77,", b'"x",')):
        with pytest.raises(MetadataCorrupt, match="numbers of log orders cannot be read"):
            parse_sequences("orders", "token", damaged)


def test_writers_that_are_no_longer_active_make_room() -> None:
    state = Sequences()
    for number in range(WRITERS_MAX):
        state.make_room(f"w{number}", 0)
        state.add(f"w{number}", run(0, 1, number), number)
    state.make_room("w1", 0)  # is there
    with pytest.raises(InvalidArgument, match="1,000 writers"):
        state.make_room("new", WRITER_AGE_MS)
    state.make_room("new", WRITER_AGE_MS + 1)
    assert state.stored("w0", 0, 1) == 0
    assert state.stored("w1", 0, 1) == 1


def test_names_and_headers() -> None:
    assert parse_number(pack_number("sensor-7", 12)) == ("sensor-7", 12)
    assert parse_number(pack_number("w", NUMBER_MAX - 1)) == ("w", NUMBER_MAX - 1)
    no_numbers = (b"w:-1", b"w:1x", "w:²".encode(), pack_number("w", NUMBER_MAX), b"w:" + b"0" * 5000)
    for value in (None, b"", b"w", b":1", b"w:", b"a b:1", b"\xff:1", b"x" * 101 + b":1", *no_numbers):
        assert parse_number(value) is None
    assert check_writer("sensor-7") == "sensor-7"
    for name in ("", "a b", "a:b", "x" * 101):
        with pytest.raises(InvalidArgument, match="no name of a writer"):
            check_writer(name)
