"""Positions of logs: numbers of rows, what is between two of them, what is gone."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from bookies.errors import InvalidArgument, LogTruncated
from bookies.protocol.log import Position
from bookies.spark.base.extents import Extents, Missing, Piece, Snapshot, Stored, pack_snapshots, parse_snapshots


def log(*shapes: tuple[int, int, int], truncated: int = 0, is_open: bool = False, first_seq: int = 0) -> Extents:
    """`shapes`: (ledger, first, last) of extents that follow each other."""
    pieces = []
    row = truncated
    for index, (ledger_id, first, last) in enumerate(shapes):
        is_complete = not (is_open and index == len(shapes) - 1)
        pieces.append(Piece(first_seq + index, ledger_id, first, last, row, is_complete))
        row += pieces[-1].count
    return Extents("x", tuple(pieces), first_seq + len(shapes), truncated)


PLAIN = log((10, 0, 4), (11, 0, -1), (12, 0, 9))


def test_the_ends() -> None:
    assert (PLAIN.beginning, PLAIN.end, PLAIN.rows) == ((0, 0), (3, 0), 15)
    tail = log((10, 0, 4), (11, 0, 2), is_open=True)
    assert (tail.end, tail.rows) == ((1, 3), 8)
    empty = log(first_seq=7)
    assert (empty.beginning, empty.end, empty.rows) == ((7, 0), (7, 0), 0)
    cut = log((10, 3, 4), (11, 0, 2), truncated=30, first_seq=5)
    assert (cut.beginning, cut.end, cut.rows) == ((5, 3), (7, 0), 35)
    assert log((10, 5, 4), (11, 0, 2)).beginning == (1, 0)
    assert log((10, 0, -1)).beginning == (1, 0)


def test_one_spelling_for_one_position() -> None:
    assert PLAIN.normal((0, 5)) == (2, 0)  # past an empty one too
    assert PLAIN.normal((1, 0)) == (2, 0)
    assert PLAIN.normal((2, 10)) == (3, 0)
    assert PLAIN.normal((2, 9)) == (2, 9)
    single = Extents(17, (Piece(0, 17, 0, 9, 0, True),), 1)
    assert single.end == (0, 10)
    assert str(single) == "ledger 17"


@given(st.lists(st.integers(0, 5), max_size=6), st.integers(0, 3), st.integers(0, 40), st.booleans())
def test_rows_and_positions_are_two_names_of_one_thing(
    counts: list[int], gone: int, truncated: int, is_open: bool
) -> None:
    shapes = [(20 + index, gone if index == 0 else 0, count + (gone if index == 0 else 0) - 1) for index, count in
              enumerate(counts)]  # fmt: skip
    extents = log(*shapes, truncated=truncated, is_open=is_open, first_seq=2)
    for row in range(truncated, extents.rows + 1):
        at = extents.at_row(row)
        assert extents.normal(at) == at
        assert extents.row_of(at) == row
        assert extents.count(extents.beginning, at) == row - truncated
        assert extents.after(extents.beginning, row - truncated) == at or row == truncated
        position = extents.position(at)
        if position is not None and row < extents.rows:
            assert extents.at_position(position) == at
        for later in range(row, extents.rows + 1):
            end = extents.at_row(later)
            runs = list(extents.runs(at, end))
            assert [run.row + index for run in runs for index in range(run.count)] == list(range(row, later))
            assert extents.missing(at, end) is None
    with pytest.raises(InvalidArgument, match="there is no row"):
        extents.at_row(extents.rows + 1)


def test_what_is_gone() -> None:
    cut = log((12, 3, 9), (13, 0, 4), truncated=30, first_seq=2)
    assert cut.missing((2, 1), (3, 0)) == Missing((2, 1), (2, 3), 2)
    assert cut.missing((2, 1), (2, 2)) == Missing((2, 1), (2, 2), 1)
    assert cut.missing((0, 4), (4, 0)) == Missing((0, 4), (2, 3), None)
    assert cut.missing((0, 4), (1, 1)) == Missing((0, 4), (1, 1), None)
    assert cut.missing((2, 3), (4, 0)) is None
    assert cut.missing((4, 0), (4, 0)) is None
    assert cut.at_row(12) == (0, 0)
    empty = log(first_seq=5)
    assert empty.missing((3, 1), (5, 0)) == Missing((3, 1), (5, 0), None)
    assert empty.missing((5, 0), (5, 0)) is None
    with pytest.raises(InvalidArgument, match="the checkpoint is of an earlier log of this name"):
        cut.missing((9, 0), (9, 4))


def test_an_end_that_was_readable_once_is_taken_at_its_word() -> None:
    """After a restart the last add confirmed may be learned a little later than before."""
    tail = log((10, 0, 4), (11, 0, 2), is_open=True)
    assert [(run.first, run.last) for run in tail.runs((1, 0), (1, 6))] == [(0, 5)]


def test_positions_in_the_words_of_the_log() -> None:
    assert PLAIN.position((0, 3)) == Position(10, 3)
    assert PLAIN.position((3, 0)) == Position(12, 10)
    assert log().position((0, 0)) is None
    cut = log((12, 3, 9), first_seq=2)
    assert cut.position((0, 7)) == Position(12, 3)
    assert cut.position((2, 0)) == Position(12, 3)
    gap = Extents("x", (Piece(0, 10, 0, 4, 0, True), Piece(3, 11, 0, 4, 5, True)), 4)
    assert gap.position((1, 0)) == Position(10, 5)
    assert gap.row_of((1, 0)) == 5
    with pytest.raises(InvalidArgument, match="it was truncated"):
        PLAIN.at_position(Position(99, 0))


def test_positions_that_the_log_names_later() -> None:
    tail = log((10, 0, 4), (11, 0, 2), is_open=True)
    assert [tail.known(at) for at in (Position(10, 3), Position(10, 5), Position(11, 2))] == [(0, 3), (1, 0), (1, 2)]
    assert {tail.known(at) for at in (Position(11, 9), Position(12, 0), None)} == {tail.end}


def test_what_is_behind_a_position() -> None:
    assert PLAIN.is_behind((0, 3), Position(10, 4))
    assert not PLAIN.is_behind((0, 4), Position(10, 4))
    assert not PLAIN.is_behind((2, 0), Position(10, 5))  # two names of one place
    assert PLAIN.is_behind((2, 9), Position(12, 10))
    assert PLAIN.is_behind((3, 0), Position(99, 0))


def test_positions_that_are_named_have_to_be_there() -> None:
    assert PLAIN.placed((0, 5)) == (2, 0)
    assert PLAIN.placed((3, 0)) == (3, 0)
    with pytest.raises(InvalidArgument, match=r"extent 0 of log x has entries up to 4: there is no entry 6 to begin"):
        PLAIN.placed((0, 6))
    with pytest.raises(InvalidArgument, match="there is no entry 5000"):
        PLAIN.at_position(Position(12, 5000))
    with pytest.raises(InvalidArgument, match=r"log x ends at \[3, 0\]: there is no \[99, 0\]"):
        PLAIN.placed((99, 0))
    tail = log((10, 0, 4), (11, 0, 2), is_open=True)
    assert tail.placed((1, 3)) == (1, 3)
    with pytest.raises(InvalidArgument, match="has entries up to 2 so far"):
        tail.placed((1, 4))
    with pytest.raises(InvalidArgument, match="ledger 17 has entries up to 9: there is no entry 5000"):
        Extents(17, (Piece(0, 17, 0, 9, 0, True),), 1).placed((0, 5000))


def test_a_snapshot_names_the_same_rows_later_or_fails() -> None:
    noted = replace(PLAIN, token="t").snapshot()
    assert noted == Snapshot("t", 0, 15)
    assert parse_snapshots(pack_snapshots({"x": noted})) == {"x": noted}
    grown = replace(log((10, 0, 4), (11, 0, -1), (12, 0, 9), (13, 0, 3)), token="t")
    assert grown.within(noted) == ((0, 0), (3, 0))
    with pytest.raises(LogTruncated, match="log x was deleted and created again since the snapshot: take a new"):
        replace(grown, token="u").within(noted)
    cut = replace(log((12, 2, 9), (13, 0, 3), truncated=7, first_seq=2), token="t")
    with pytest.raises(LogTruncated, match="rows 0 to 6 of the snapshot were truncated; the log now begins at row 7"):
        cut.within(noted)
    assert cut.within(Snapshot("t", 7, 12)) == ((2, 2), (2, 7))
    assert cut.within(Snapshot("t", 3, 3)) == ((2, 2), (2, 2))  # It has no rows.
    pieces = (replace(cut.pieces[0], stored=Stored(99, 1, 5, 8)), *cut.pieces[1:])
    compacted = replace(cut, pieces=pieces)
    with pytest.raises(LogTruncated, match="a compaction has removed rows between 7 and 11 since the snapshot"):
        compacted.within(Snapshot("t", 7, 12))
    assert compacted.within(compacted.snapshot()) == ((2, 2), (4, 0))
    with pytest.raises(InvalidArgument, match="ledger 17: a snapshot is of logs whose rows are numbered"):
        Extents(17, (), 1).snapshot()
    for text in ("{", '{"x": 5}', '{"x": {"token": "t", "start": 5, "end": 4}}'):
        with pytest.raises(ValueError, match="expected the text that snapshot_logs returns"):
            parse_snapshots(text)
