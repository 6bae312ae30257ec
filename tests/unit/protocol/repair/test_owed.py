"""What a bookie owes of a ledger, by the record and by what it holds."""

from __future__ import annotations

import pytest

from bookies.model import BookieId, DigestType, LedgerMetadata, LedgerState
from bookies.protocol.repair.fragments import fragments_to_check
from bookies.protocol.repair.owed import Owed, OwedCounts, OwedTotals, owed_of, remaining_s, totals_of

B1, B2, B3, B4 = map(BookieId, ("b1", "b2", "b3", "b4"))
CLOSED = LedgerMetadata(7, 3, 2, 2, ((0, (B1, B2, B3)), (6, (B1, B4, B3)))).replace(
    state=LedgerState.CLOSED, last_entry_id=8, length=900, digest_type=DigestType.CRC32C
)
OPEN = LedgerMetadata(7, 2, 2, 2, ((0, (B1, B2)), (4, (B2, B3))))


def owed(record: LedgerMetadata, bookie: BookieId, held: list[range], confirmed: int = -1) -> tuple[list[range], bool]:
    item = owed_of(record, fragments_to_check(record, confirmed), bookie, held)
    assert item.entries == sum(map(len, item.runs))
    return list(item.runs), item.is_settled


@pytest.mark.parametrize(
    ("bookie", "held", "runs"),
    [
        (B1, [], [range(1), range(2, 4), range(5, 6), range(6, 7), range(8, 9)]),
        (B1, [range(4)], [range(5, 6), range(6, 7), range(8, 9)]),
        (B1, [range(9)], []),
        (B2, [], [range(2), range(3, 5)]),
        (B4, [range(6, 7)], [range(7, 8)]),
        (BookieId("b9"), [], []),
    ],
)
def test_only_entries_that_the_record_places_here_are_owed(
    bookie: BookieId, held: list[range], runs: list[range]
) -> None:
    assert owed(CLOSED, bookie, held) == (runs, not runs)


def test_an_open_ledger_owes_its_finished_fragments_and_is_never_settled() -> None:
    assert owed(OPEN, B1, [range(2)], 5) == ([range(2, 4)], False)
    assert owed(OPEN, B1, [range(4)], 5) == ([], False)
    assert owed(OPEN, B3, [], 5) == ([], False)
    assert owed(OPEN, B1, [], 1) == ([], False)  # the fragment is not known to be finished


def test_sizes_and_totals() -> None:
    everything = owed_of(CLOSED, fragments_to_check(CLOSED, -1), B1, [])
    part = owed_of(CLOSED, fragments_to_check(CLOSED, -1), B1, [range(4)])
    nothing = owed_of(OPEN, fragments_to_check(OPEN, 5), B3, [])
    assert everything.entries == 6
    assert part.size == everything.size / 2
    assert everything.size >= 600
    assert nothing.size == 0
    assert totals_of([part, nothing]) == OwedTotals(2, 3, part.size, 1)
    assert totals_of([]) == OwedTotals()


def test_something_is_owed_while_it_is_not_known() -> None:
    counts = OwedCounts()
    assert counts.entries == 0
    counts.is_known = False
    assert counts.entries == 1
    counts.left = OwedTotals(2, 1_500, 3_000, 0)
    assert counts.entries == 1_500
    counts.is_known, counts.may_lack = True, lambda: True
    assert counts.entries == 1_500
    counts.left = OwedTotals()
    assert counts.entries == 1


def test_the_forecast_extrapolates() -> None:
    assert remaining_s(500, 0, 10.0) is None
    assert remaining_s(500, 1_000, 10.0) == 5.0


def test_what_is_found_again_is_counted_once() -> None:
    counts, first = OwedCounts(), Owed(7, (range(4),), 4, 400, False)
    counts.found(None, first)
    counts.found(first, Owed(7, (range(2),), 2, 200, False))
    counts.found(first, Owed(7, (range(5),), 5, 500, False))
    assert (counts.found_entries, counts.found_size) == (5, 500)


def test_counts_as_text() -> None:
    counts = OwedCounts(OwedTotals(2, 1_500, 3_000, 0))
    assert str(counts) == "1,500 entries of 2 ledgers, about 3,000 bytes"
    counts.left, counts.remaining_s = OwedTotals(2, 1_500, 3_000, 1), 12.4
    assert str(counts).endswith("; open ledgers, uncertain until they are closed: 1; about 12 s left")
