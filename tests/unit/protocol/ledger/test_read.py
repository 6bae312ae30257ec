"""Replica choice, order, runs, ranges, batch support: client-protocol 3.3, 3.4, 3.7 and 3.8 as tables."""

from __future__ import annotations

import itertools

import pytest

from bookies.errors import (
    BookieBusy,
    BookieTimeout,
    BookieUnreachable,
    BookKeeperError,
    DataUnknown,
    DigestMismatch,
    EntryNotFound,
    LedgerUnknownToBookie,
    ReadFailed,
    Unauthorized,
)
from bookies.model import BookieId, LedgerMetadata
from bookies.protocol.ledger.read import (
    DROPS_OF_A_BATCH_READER,
    BatchSupport,
    ErrorChoice,
    ReplicaReads,
    StickyPosition,
    longest_run_first,
    read_ranges,
    replica_order,
    run_size,
    why_unreadable,
)
from bookies.protocol.quorums import write_set
from bookies.protocol.quorums.quorum import stores

A, B, C = BookieId("a"), BookieId("b"), BookieId("c")
ENSEMBLE = (A, B, C)


def ledger(ensemble: int = 3, write_quorum: int = 3, ack_quorum: int = 2, **changes: object) -> LedgerMetadata:
    names = tuple(BookieId(f"b{number}") for number in range(ensemble))
    return LedgerMetadata(7, ensemble, write_quorum, ack_quorum, ((0, names),)).replace(**changes)


@pytest.mark.parametrize(
    ("errors", "expected"),
    [
        ([EntryNotFound, EntryNotFound, EntryNotFound], EntryNotFound),
        ([EntryNotFound, LedgerUnknownToBookie, EntryNotFound], EntryNotFound),
        ([EntryNotFound, BookieUnreachable, EntryNotFound], BookieUnreachable),
        ([BookieUnreachable, EntryNotFound, ReadFailed], ReadFailed),
        ([BookieUnreachable, BookieTimeout, ReadFailed], BookieTimeout),
        ([BookieTimeout, ReadFailed, EntryNotFound], BookieTimeout),
        ([DigestMismatch, BookieUnreachable, ReadFailed], DigestMismatch),
        ([LedgerUnknownToBookie, DigestMismatch, BookieUnreachable], DigestMismatch),
    ],
)
def test_the_error_reported_when_all_replicas_fail(errors: list[type[BookKeeperError]], expected: type) -> None:
    choice = ErrorChoice()
    for bookie, kind in zip((A, B, C), errors, strict=True):
        choice.note(bookie, kind())
    assert type(choice.error) is expected
    assert list(choice.causes) == [A, B, C]


def test_not_found_is_reported_only_if_every_replica_said_so() -> None:
    kinds = (EntryNotFound, LedgerUnknownToBookie, BookieUnreachable, BookieTimeout, ReadFailed, DigestMismatch)
    for kinds_of_three in itertools.product(kinds, repeat=3):
        choice = ErrorChoice()
        for bookie, kind in zip((A, B, C), kinds_of_three, strict=True):
            choice.note(bookie, kind())
        all_negative = all(kind in (EntryNotFound, LedgerUnknownToBookie) for kind in kinds_of_three)
        assert isinstance(choice.error, EntryNotFound | LedgerUnknownToBookie) == all_negative


def test_replicas_are_asked_once_each_in_order() -> None:
    reads = ReplicaReads((1, 2, 0))
    asked: list[int] = []
    while due := reads.due():
        assert reads.due() == ()  # Nobody else while somebody is being asked.
        asked += due
        reads.failed(ENSEMBLE[due[0]], BookieTimeout())
    assert asked == [1, 2, 0]
    assert reads.has_failed
    assert type(reads.error) is BookieTimeout
    assert list(reads.causes) == [B, C, A]


def test_a_late_replica_gets_company_until_all_have_been_asked() -> None:
    reads = ReplicaReads((0, 1, 2))
    assert (reads.due(), reads.next_position, reads.late(), reads.late(), reads.late()) == ((0,), 1, (1,), (2,), ())
    assert not reads.has_more
    assert reads.next_position is None
    for bookie in (C, A):
        reads.failed(bookie, EntryNotFound())
        assert reads.due() == ()
        assert not reads.has_failed
    reads.failed(B, BookieUnreachable())
    assert reads.has_failed
    assert type(reads.error) is BookieUnreachable


def test_one_of_two_that_fails_does_not_bring_in_the_third() -> None:
    reads = ReplicaReads((0, 1, 2))
    reads.due()
    reads.late()
    reads.failed(A, ReadFailed())
    assert reads.due() == ()
    reads.failed(B, ReadFailed())
    assert reads.due() == (2,)


def test_parallel_reads_ask_everybody_at_once() -> None:
    reads = ReplicaReads((2, 0, 1), is_parallel=True)
    assert reads.due() == (2, 0, 1)
    assert reads.late() == ()
    assert reads.causes == {}
    for bookie in ENSEMBLE:
        assert not reads.has_failed
        reads.failed(bookie, EntryNotFound())
    assert reads.has_failed


def test_replicas_are_ordered_by_rank_and_never_dropped() -> None:
    assert replica_order((0, 1, 2), ENSEMBLE, lambda bookie: int(bookie == A)) == [1, 2, 0]
    assert replica_order((2, 0, 1), ENSEMBLE, {A: 1, B: 2, C: 2}.__getitem__) == [0, 2, 1]
    assert replica_order((2, 0, 1), ENSEMBLE, lambda bookie: 2) == (2, 0, 1)


def test_a_sticky_position_moves_on_with_errors() -> None:
    sticky = StickyPosition(3, 5)
    assert sticky.position == 2
    sticky.failed(2)
    sticky.failed(2)  # Several requests to one bookie fail together.
    assert sticky.position == 0


def test_runs_are_what_a_bookie_of_a_striped_ledger_holds() -> None:
    for size in range(1, 7):
        for write_quorum in range(1, size + 1):
            for entry_id in range(2 * size):
                replicas = longest_run_first(entry_id, size, write_quorum)
                assert sorted(replicas) == sorted(write_set(entry_id, size, write_quorum))
                sizes = [run_size(position, entry_id, size, write_quorum) for position in replicas]
                if size == write_quorum:
                    assert sizes == [0] * size
                    continue
                assert sizes == list(range(write_quorum, 0, -1))
                for position, run in zip(replicas, sizes, strict=True):
                    held = [stores(position, entry_id + ahead, size, write_quorum) for ahead in range(run + 1)]
                    assert held == [True] * run + [False]


def test_a_bookie_that_drops_the_connection_but_answers_single_reads_knows_no_batch_reads() -> None:
    support = BatchSupport()
    assert support.knows(A)
    support.dropped(A)
    assert not support.knows(A)  # Until a single read has told.
    assert support.knows(B)
    support.answered_single(A)
    support.answered_single(A)
    assert not support.knows(A)


def test_a_bookie_that_has_answered_batch_reads_may_lose_connections() -> None:
    support = BatchSupport()
    support.answered_batch(A)
    for _ in range(DROPS_OF_A_BATCH_READER - 1):
        support.dropped(A)
        support.answered_single(A)
        assert support.knows(A)
    support.answered_batch(A)
    for _ in range(DROPS_OF_A_BATCH_READER):
        assert support.knows(A)
        support.dropped(A)
        support.answered_single(A)
    assert not support.knows(A)  # Downgraded.


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (EntryNotFound("gone"), "no replica holds the entry: a: gone; b: late (ledger 7, entry 3)"),
        (ReadFailed("bad disk"), "no replica could deliver: a: bad disk; b: late (ledger 7, entry 3)"),
        (BookieTimeout("silent"), "can be reached (ledger 7, entry 3)"),
        (BookieBusy("busy"), "Read again later (ledger 7, entry 3)"),
        (DataUnknown("limbo"), "have been repaired (ledger 7, entry 3)"),
        (DigestMismatch("rot"), "checks every replica (ledger 7, entry 3)"),
        (Unauthorized("key", bookie="a"), "as a user who may read it (ledger 7, entry 3, bookie a)"),
    ],
)
def test_an_entry_that_cannot_be_read_says_why_and_what_to_do(error: BookKeeperError, text: str) -> None:
    described = why_unreadable(error, {A: error, B: BookieTimeout("late")}, 7, 3)
    assert type(described) is type(error)
    assert described.__cause__ is error
    assert str(described).endswith(text)


def test_ranges_end_at_fragments_and_at_the_last_entry() -> None:
    metadata = ledger(ensembles=((0, (A, B)), (10, (A, C)), (10, (B, C)), (25, (A, B))))
    cut = list(read_ranges(metadata, 3, 30, lambda ensemble: 8))
    assert cut == [
        (3, 9, (A, B)),
        (10, 17, (B, C)),
        (18, 24, (B, C)),
        (25, 30, (A, B)),
    ]
    assert list(read_ranges(metadata, 5, 4, lambda ensemble: 8)) == []
