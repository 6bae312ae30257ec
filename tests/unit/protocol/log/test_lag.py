"""Lag: rows and bytes from a position to the end of a log."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from bookies.model import DigestType
from bookies.protocol.log import Manifest, Position
from bookies.protocol.log.lag import Lag, rows_and_bytes
from bookies.protocol.log.log_model import Extent, LedgerEnd

LOG = replace(
    Manifest("t", 1, 3, 3, 2, DigestType.CRC32C),
    # 5..9 of 10, nothing, 0..9, open
    extents=(Extent(3, 10, 5, 9, 10, 90), Extent(4, 11, 0, -1, 0, 0), Extent(5, 12, 0, 9, 10, 95), Extent(6, 13)),
    next_seq=7,
)
ENDS = {13: LedgerEnd(3, 40)}


@pytest.mark.parametrize(
    ("at", "expected"),
    [
        ((10, 5), (5 + 10 + 4, 45 + 95 + 40)),
        ((10, 9), (1 + 10 + 4, 9 + 95 + 40)),
        ((10, 10), (10 + 4, 95 + 40)),
        ((11, 0), (10 + 4, 95 + 40)),
        ((12, 0), (10 + 4, 95 + 40)),
        ((13, 0), (4, 40)),
        ((13, 3), (1, 10)),
        ((13, 4), (0, 0)),
        ((10, 4), None),  # truncated
        ((9, 0), None),
    ],
)
def test_what_is_left(at: tuple[int, int], expected: tuple[int, int] | None) -> None:
    assert rows_and_bytes(Position(*at), LOG, ENDS) == expected


@pytest.mark.parametrize(("kept", "at", "rows"), [(4, 0, 4), (4, 5, 2), (4, 9, 0), (4, 10, 0), (0, 0, 0), (0, 3, 0)])
def test_a_compacted_ledger_counts_what_was_kept(kept: int, at: int, rows: int) -> None:
    log = replace(LOG, extents=(Extent(5, 12, 0, 9, 10, 95, stored=20, kept=kept), Extent(6, 13)))
    found = rows_and_bytes(Position(12, at), log, ENDS)
    assert found is not None
    assert found[0] == rows + 4


def test_an_end_that_is_unknown() -> None:
    assert rows_and_bytes(Position(10, 5), LOG, {}) is None


def test_without_entries_that_were_handled_ahead() -> None:
    lag = Lag(10, 1_000, 5.0)
    assert lag.without(0) is lag
    assert lag.without(4) == Lag(6, 600, 5.0)
    assert lag.without(11) == Lag(0, 0, 5.0)
    assert Lag(None, None, 5.0).without(4) == Lag(None, None, 5.0)
